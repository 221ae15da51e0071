"""One request to a server on this machine, on a connection of its own, and what it answers."""

import json
from http.client import HTTPConnection, HTTPMessage
from typing import Any, NamedTuple


class Answer(NamedTuple):
    """All that came back."""

    status: int
    body: bytes
    headers: HTTPMessage

    @property
    def text(self) -> str:
        """The body, read as UTF-8."""
        return self.body.decode()

    @property
    def json(self) -> Any:
        """The body, read as JSON."""
        return json.loads(self.body)


def ask(
    port: int,
    method: str,
    path: str,
    body: bytes | str | None = None,
    headers: dict[str, str] | None = None,
    timeout: float = 30,
) -> Answer:
    """Send a request and read its answer to the end; `timeout` is in seconds."""
    connection = HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        return Answer(answer.status, answer.read(), answer.headers)
    finally:
        connection.close()


def post(port: int, body: bytes, path: str = "/v1/traces", **headers: str) -> Answer:
    """Send an OTLP request in protobuf."""
    return ask(port, "POST", path, body, {"Content-Type": "application/x-protobuf", **headers})


def health(port: int) -> Any:
    """Return the body of `/health`."""
    answer = ask(port, "GET", "/health")
    assert answer.status == 200, answer.text
    return answer.json
