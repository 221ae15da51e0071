"""A server in place of a larger model: it knows how to repair a module, but not the right repair.

    python teacher.py --port 9000

It implements OpenAI's chat completions for mini-swe-agent and Codex. It prints the module, replaces
the returned expression by one of the five, drawn at random, and ends. Its traces are a warm start:
they have the form of a repair, and one in four is right.
"""

import argparse
import json
import random
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from typing import Any

from functions import EXPRESSIONS

SUBMIT = " && echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
"""What ends mini-swe-agent; Codex ends with a message."""
TOOLS = {"bash": ("command", SUBMIT), "exec_command": ("cmd", "")}
"""The agents' tools: the parameter with the command, and what follows the last command."""
_MODULE = re.compile(r"(\w+\.py): ")
_FUNCTION = re.compile(r"def \w+\((\w+), (\w+)\):.*return ([^\n]+)", re.DOTALL)


def next_message(body: Mapping[str, Any], drawn: random.Random) -> dict[str, Any]:
    """Return the message that follows those of a request."""
    messages: Sequence[Mapping[str, Any]] = body["messages"]
    name = next((_name(each) for each in body.get("tools", []) if _name(each) in TOOLS), None)
    if name is None:
        return {"role": "assistant", "content": "I have no shell."}
    parameter, end = TOOLS[name]
    module = next(
        found[1]
        for each in reversed(messages)
        if each["role"] == "user" and (found := _MODULE.search(str(each["content"])))
    )
    results = [str(each["content"]) for each in messages if each["role"] == "tool"]
    if len(results) > 1:
        return {"role": "assistant", "content": "Repaired."}
    command = f"{_guess(results[0], module, drawn)}{end}" if results else f"cat {module}"
    function = {"name": name, "arguments": json.dumps({parameter: command})}
    call = {"index": 0, "id": f"call_{drawn.getrandbits(64):x}", "type": "function"}
    return {"role": "assistant", "content": None, "tool_calls": [{**call, "function": function}]}


def _name(tool: Mapping[str, Any]) -> str:
    return str(tool["function"]["name"])


def _guess(printed: str, module: str, drawn: random.Random) -> str:
    found = _FUNCTION.search(printed)
    assert found is not None, printed
    first, second, returned = found.groups()
    others = [each.format(a=first, b=second) for each in EXPRESSIONS.values()]
    repaired = drawn.choice([each for each in others if each != returned])
    return f"sed -i 's/return .*/return {repaired}/' {module}"


def make_server(port: int, seed: int = 0) -> ThreadingHTTPServer:
    """Return a server on the loopback address; port 0 is a free one."""
    numbers, drawn = count(), random.Random(seed)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._send({"object": "list", "data": [{"id": "teacher", "object": "model"}]})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            message = next_message(body, drawn)
            reason = "tool_calls" if "tool_calls" in message else "stop"
            head = {"id": f"chatcmpl-{next(numbers)}", "created": 0, "model": body["model"]}
            usage = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
            if body.get("stream"):
                delta = {"index": 0, "delta": message, "finish_reason": reason}
                kind = {"object": "chat.completion.chunk", "choices": [delta]}
                chunk = json.dumps({**head, **kind, "usage": usage})
                self._send(f"data: {chunk}\n\ndata: [DONE]\n\n", "text/event-stream")
                return
            choice = {"index": 0, "message": message, "finish_reason": reason}
            self._send({**head, "object": "chat.completion", "choices": [choice], "usage": usage})

        def _send(self, body: object, kind: str = "application/json") -> None:
            payload = (body if isinstance(body, str) else json.dumps(body)).encode()
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(payload)))
            self.end_headers()
            self.wfile.write(payload)

        def log_message(self, *_: object) -> None:
            pass

    return ThreadingHTTPServer(("127.0.0.1", port), Handler)


def main(arguments: list[str]) -> None:
    """Serve until Ctrl-C."""
    parser = argparse.ArgumentParser(description="Repair modules by guessing, over HTTP.")
    parser.add_argument("--port", type=int, default=9000)
    server = make_server(parser.parse_args(arguments).port)
    print(f"http://127.0.0.1:{server.server_port}/v1", flush=True)
    with suppress(KeyboardInterrupt):
        server.serve_forever()


if __name__ == "__main__":
    main(sys.argv[1:])
