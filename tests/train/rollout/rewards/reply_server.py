"""A server at the process border: it answers with the replies of a test, and keeps the requests."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

Reply = tuple[int, Any] | tuple[int, Any, dict[str, str]]
"""Status, body, and headers if there are some; bytes are sent as they are, else as JSON."""


class Received(NamedTuple):
    """One request."""

    path: str
    headers: dict[str, str]
    body: Any
    at: float
    """Monotonic seconds of its arrival."""


class ReplyServer(ThreadingHTTPServer):
    """Answers each request with the next of its replies; the last one is repeated."""

    def __init__(self, replies: list[Reply], port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.replies = replies
        self.requests: list[Received] = []
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: ReplyServer

    def do_POST(self) -> None:
        at = time.monotonic()
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.requests.append(Received(self.path, dict(self.headers), body, at))
        replies = self.server.replies
        status, value, *more = replies.pop(0) if len(replies) > 1 else replies[0]
        content = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        headers: dict[str, str] = more[0] if more else {}
        for name, text in {**headers, "content-length": str(len(content))}.items():
            self.send_header(name, text)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def replying(*replies: Reply, port: int = 0) -> Iterator[ReplyServer]:
    """Run a server for a block."""
    server = ReplyServer(list(replies), port)
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
