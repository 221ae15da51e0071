"""A platform's API on this machine: recorded answers, or those of a function, with faults."""

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

DATA = Path(__file__).parent / "data"


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    query: dict[str, list[str]]
    body: Any
    headers: Mapping[str, str]

    def one(self, name: str, default: str = "") -> str:
        """Return the only value of a query's name."""
        return self.query.get(name, [default])[0]


Answer = Callable[[Request], Any]
"""Returns the JSON of an answer; None for 404."""


@dataclass
class Fault:
    """An answer in place of the right one."""

    status: int = 500
    body: bytes = b"out of order"
    headers: dict[str, str] = field(default_factory=dict)
    cut: bool = False
    """Whether the connection ends in the middle of the right answer."""


@dataclass
class Served:
    port: int
    requests: list[Request] = field(default_factory=list)
    faults: dict[int, Fault] = field(default_factory=dict)
    """By the number of the request, from 0."""


@contextmanager
def serving(answer: Answer, prefix: str) -> Iterator[Served]:
    """Serve an API below a prefix of the path."""
    served = Served(0)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer()

        def do_POST(self) -> None:
            self._answer()

        def _answer(self) -> None:
            parts = urlsplit(self.path)
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            request = Request(
                self.command,
                parts.path.removeprefix(prefix),
                parse_qs(parts.query),
                json.loads(body) if body else None,
                dict(self.headers),
            )
            number = len(served.requests)
            served.requests.append(request)
            fault = served.faults.get(number)
            if fault and not fault.cut:
                self._send(fault.status, fault.body, fault.headers)
                return
            found = answer(request)
            text = json.dumps(found).encode()
            if fault:
                self.send_response(200)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text[: len(text) // 2])
                self.close_connection = True
                return
            self._send(404 if found is None else 200, text, {})

        def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        served.port = server.server_port
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield served
        finally:
            server.shutdown()
            thread.join()


def recorded(name: str) -> Answer:
    """Return the answers of a real server, in `data/NAME.json`."""
    exchanges = json.loads((DATA / f"{name}.json").read_text())
    answers = {
        (each["method"], each["path"], _query(each["query"]), json.dumps(each["body"])): each
        for each in exchanges
    }

    def answer(request: Request) -> Any:
        query = _query({key: value for key, value in request.query.items() if key != "end_time"})
        body = (
            {**request.body, "filter": ""}
            if request.body and "filter" in request.body
            else request.body
        )
        found = answers.get((request.method, request.path, query, json.dumps(body)))
        return found and found["answer"]

    return answer


def _query(values: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    """Return the pairs of a query, each value of a list as one."""
    lists = {key: each if isinstance(each, list) else [each] for key, each in values.items()}
    return tuple(sorted((key, str(value)) for key, each in lists.items() for value in each))
