"""A fake vLLM at the process border: an HTTP server that answers as vLLM 0.32 does.

An answer repeats the words of the last user message; word `wN` is token N. Log-probabilities are
`logprob(token)`, floats that float32 holds exactly. Words steer it: `slow` takes a second, in a
stream a token; `boom` fails with status 500, `long` with 400; `vanish` ends the connection in
mid-stream; `die` ends the process. As a program it takes vLLM's arguments.
"""

import contextlib
import json
import os
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

SLOW = 1.0


def logprob(token: int) -> float:
    """Give the log-probability that the server reports for a token, as float32 holds it."""
    return float(struct.unpack("<f", struct.pack("<f", -0.1 - token / 7))[0])


class FakeVllm:
    """Serves on a free port; keeps the bodies, paths and raw answers it has seen."""

    def __init__(self, port: int = 0) -> None:
        self.requests: list[dict[str, Any]] = []
        self.answers: list[bytes] = []
        self.admin: list[tuple[str, Any]] = []
        self.weights = "default"
        self.refuse_reload = 0
        """How many reloads it refuses from now on."""
        self.aborted = threading.Event()
        """Set when a client goes away in mid-answer."""
        self._server = ThreadingHTTPServer(("127.0.0.1", port), _handler(self))
        self._server.daemon_threads = False
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _handler(fake: FakeVllm) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def log_message(self, *args: object) -> None:
            """Print nothing."""

        def do_GET(self) -> None:
            if self.path == "/health":
                return self._json(200, {})
            if self.path == "/weight_info":
                return self._json(200, {"weight_version": fake.weights})
            return self._json(200, {"object": "list", "data": [{"id": "policy"}]})

        def do_POST(self) -> None:
            length = int(self.headers.get("content-length") or 0)
            body = json.loads(self.rfile.read(length) or b"null")
            if not self.path.endswith("/chat/completions"):
                return self._admin(body)
            fake.requests.append(body)
            words = body["messages"][-1]["content"].split()
            if "die" in words:
                os.kill(os.getpid(), signal.SIGKILL)
            if "boom" in words:
                return self._json(500, {"error": {"message": "the engine is dead"}})
            if "long" in words:
                return self._json(400, {"error": {"message": "too many tokens", "code": 400}})
            try:
                return self._stream(body, words) if body.get("stream") else self._whole(body, words)
            except OSError:
                fake.aborted.set()

        def _admin(self, body: Any) -> None:
            fake.admin.append((self.path, body))
            if self.path == "/collective_rpc" and fake.refuse_reload:
                fake.refuse_reload -= 1
                return self._json(500, {"error": "no such weights"})
            if self.path == "/update_weight_version":
                fake.weights = body["new_version"]
            return self._json(200, {"success": True})

        def _whole(self, body: dict[str, Any], words: list[str]) -> None:
            for _ in range(5 if "slow" in words else 0):
                time.sleep(SLOW / 5)
                self._require_client()
            tokens = _tokens(words)
            choices = [_choice(index, tokens, body) for index in range(body.get("n") or 1)]
            usage = {"prompt_tokens": len(words), "completion_tokens": len(tokens)}
            ids = _prompt_ids(body, words)
            self._json(200, {**_head(body), "choices": choices, "usage": usage, **ids})

        def _require_client(self) -> None:
            with contextlib.suppress(BlockingIOError):
                if self.connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b"":
                    raise ConnectionResetError("the client went away")

        def _stream(self, body: dict[str, Any], words: list[str]) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/event-stream; charset=utf-8")
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            for event in _events(body, words):
                if event is None:
                    self.close_connection = True
                    return
                if "slow" in words:
                    time.sleep(SLOW)
                self._chunk(b"data: " + event + b"\n\n")
            self._chunk(b"")

        def _chunk(self, data: bytes) -> None:
            fake.answers.append(data)
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
            self.wfile.flush()

        def _json(self, status: int, content: object) -> None:
            body = json.dumps(content).encode()
            fake.answers.append(body)
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            try:
                self.wfile.write(body)
            except OSError:
                fake.aborted.set()

    return Handler


def _head(body: dict[str, Any], kind: str = "chat.completion") -> dict[str, Any]:
    return {"id": "chatcmpl-1", "object": kind, "created": 1, "model": body["model"]}


def _tokens(words: list[str]) -> list[int]:
    return [int(word[1:]) for word in words if word[:1] == "w" and word[1:].isdigit()]


def _logprobs(tokens: list[int], body: dict[str, Any]) -> dict[str, Any] | None:
    if not body.get("logprobs"):
        return None
    return {"content": [{"token": f"w{each}", "logprob": logprob(each)} for each in tokens]}


def _prompt_ids(body: dict[str, Any], words: list[str]) -> dict[str, Any]:
    asked = body.get("return_token_ids")
    return {"prompt_token_ids": [1000 + i for i, _ in enumerate(words)] if asked else None}


def _choice(index: int, tokens: list[int], body: dict[str, Any]) -> dict[str, Any]:
    content = " ".join(f"w{each}" for each in tokens)
    return {
        "index": index,
        "message": {"role": "assistant", "content": content, "refusal": None},
        "logprobs": _logprobs(tokens, body),
        "finish_reason": "stop",
        "token_ids": tokens if body.get("return_token_ids") else None,
    }


def _events(body: dict[str, Any], words: list[str]) -> Iterator[bytes | None]:
    head = _head(body, "chat.completion.chunk")
    first = {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
    yield _dump({**head, "choices": [{**first, "logprobs": None}], **_prompt_ids(body, words)})
    tokens = _tokens(words)
    for place, token in enumerate(tokens):
        if "vanish" in words and place == len(tokens) - 1:
            yield None
        choice: dict[str, Any] = {"index": 0, "delta": {"content": f" w{token}"}}
        choice |= {"logprobs": _logprobs([token], body), "finish_reason": None}
        if place == len(tokens) - 1:
            choice["finish_reason"] = "stop"
        if body.get("return_token_ids"):
            choice["token_ids"] = [token]
        yield _dump({**head, "choices": [choice]})
    if (body.get("stream_options") or {}).get("include_usage"):
        usage = {"prompt_tokens": len(words), "completion_tokens": len(tokens)}
        yield _dump({**head, "choices": [], "usage": usage})
    yield b"[DONE]"


def _dump(content: object) -> bytes:
    return json.dumps(content).encode()


if __name__ == "__main__":
    print(*sys.argv[1:], flush=True)
    with FakeVllm(int(sys.argv[sys.argv.index("--port") + 1])):
        signal.pause()
