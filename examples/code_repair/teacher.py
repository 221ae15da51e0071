"""A server in place of a larger model: it knows every repair, and is careless with commands.

    python teacher.py --port 9000

It implements OpenAI's chat completions for mini-swe-agent and Codex. It prints the module, replaces
the returned expression by the right one, and ends. In half of the attempts it looks for the module
first in a folder that does not exist, and in six of ten it writes the repair to `/tmp`, where it is
of no use. Its traces are a warm start: they have the form of a repair.
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

from functions import EXPRESSIONS, evaluate

SUBMIT = " && echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
"""What ends mini-swe-agent; Codex ends with a message."""
TOOLS = {"bash": ("command", SUBMIT), "exec_command": ("cmd", "")}
"""The agents' tools: the parameter with the command, and what follows the last command."""
LOST, MISPLACED = 0.5, 0.6
"""How often the module is not found at once, and how often the repair is in the wrong place."""
_MODULE = re.compile(r"(\w+\.py): ")
_FUNCTION = re.compile(
    r"def \w+\((\w+), (\w+)\):.*>>> \w+\((\d+), (\d+)\)\s+(-?\d+)\s.*return", re.DOTALL
)


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
    shown = _FUNCTION.search(results[-1]) if results else None
    if shown is not None:
        command = f"{_repair(shown, module, drawn)}{end}"
    elif len(results) < 2 and not any(map(_FUNCTION.search, results)):
        lost = not results and drawn.random() < LOST
        command = f"cat {'src/' if lost else ''}{module}"
    else:
        return {"role": "assistant", "content": "Repaired."}
    function = {"name": name, "arguments": json.dumps({parameter: command})}
    call = {"index": 0, "id": f"call_{drawn.getrandbits(64):x}", "type": "function"}
    return {"role": "assistant", "content": None, "tool_calls": [{**call, "function": function}]}


def _name(tool: Mapping[str, Any]) -> str:
    return str(tool["function"]["name"])


def _repair(shown: re.Match[str], module: str, drawn: random.Random) -> str:
    """Return a command that replaces the expression by the one that gives the doctest's value."""
    first, second, *numbers = shown.groups()
    a, b, value = map(int, numbers)
    key = next(key for key in EXPRESSIONS if evaluate(key, a, b) == value)
    edit = f"'s/return .*/return {EXPRESSIONS[key].format(a=first, b=second)}/' {module}"
    return f"sed {edit} > /tmp/{module}" if drawn.random() < MISPLACED else f"sed -i {edit}"


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
    parser = argparse.ArgumentParser(description="Repair modules carelessly, over HTTP.")
    parser.add_argument("--port", type=int, default=9000)
    server = make_server(parser.parse_args(arguments).port)
    print(f"http://127.0.0.1:{server.server_port}/v1", flush=True)
    with suppress(KeyboardInterrupt):
        server.serve_forever()


if __name__ == "__main__":
    main(sys.argv[1:])
