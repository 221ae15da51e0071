"""A server in place of a larger model: it answers questions of training from their decomposition.

    python teacher.py train.jsonl --port 9000

It implements OpenAI's chat completions. For a question of the file it searches for the title of
each supporting paragraph, one after the other, and then answers. Its traces are a warm start.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from typing import Any

from musique import BadData, Question, load_questions

Plans = Mapping[str, Sequence[str]]
"""By question: the titles to search for, and the answer at the end."""


def read_plans(file: Path) -> Plans:
    """Read the questions that have a decomposition.

    Raises:
        BadData: with the line and the field that are wrong.
    """
    questions = [question for question in load_questions(file) if question.answerable]
    return {each.question: (*_titles(each), each.answer) for each in questions}


def _titles(question: Question) -> list[str]:
    titles = {paragraph.idx: paragraph.title for paragraph in question.paragraphs}
    return [titles[step.support] for step in question.steps if step.support is not None]


def next_message(messages: Sequence[Mapping[str, Any]], plans: Plans) -> dict[str, Any]:
    """Return the next search for the last question in `messages`, or its answer."""
    last = max((i for i, each in enumerate(messages) if each["role"] == "user"), default=0)
    plan = plans.get(messages[last]["content"])
    if plan is None:
        return {"role": "assistant", "content": "I do not know."}
    searches = sum(each["role"] == "tool" for each in messages[last:])
    if searches >= len(plan) - 1:
        return {"role": "assistant", "content": f"<answer>{plan[-1]}</answer>"}
    arguments = json.dumps({"query": plan[searches]})
    call = {"name": "retrieve", "arguments": arguments}
    calls = [{"id": f"call_{len(messages)}", "type": "function", "function": call}]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def make_server(plans: Plans, port: int) -> ThreadingHTTPServer:
    """Return a server on the loopback address; port 0 is a free one."""
    numbers = count()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer({"object": "list", "data": [{"id": "teacher", "object": "model"}]})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            message = next_message(body["messages"], plans)
            reason = "tool_calls" if "tool_calls" in message else "stop"
            self._answer(
                {
                    "id": f"chatcmpl-{next(numbers)}",
                    "object": "chat.completion",
                    "created": 0,
                    "model": body["model"],
                    "choices": [{"index": 0, "message": message, "finish_reason": reason}],
                    "usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
                }
            )

        def _answer(self, body: object) -> None:
            payload = json.dumps(body).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(payload)))
            self.end_headers()
            self.wfile.write(payload)

        def log_message(self, *_: object) -> None:
            pass

    return ThreadingHTTPServer(("127.0.0.1", port), Handler)


def main(arguments: list[str]) -> None:
    """Serve until Ctrl-C."""
    parser = argparse.ArgumentParser(description="Answer the questions of a file over HTTP.")
    parser.add_argument("file", type=Path, help="questions in MuSiQue's format")
    parser.add_argument("--port", type=int, default=9000)
    options = parser.parse_args(arguments)
    try:
        server = make_server(read_plans(options.file), options.port)
    except (BadData, OSError) as error:
        sys.exit(str(error))
    print(f"http://127.0.0.1:{server.server_port}/v1", flush=True)
    with suppress(KeyboardInterrupt):
        server.serve_forever()


if __name__ == "__main__":
    main(sys.argv[1:])
