"""The gateway that serves a policy is found, also while it starts."""

import json
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from ltrain_train.errors import NotReachable
from ltrain_train.publishing.publish import find_gateway
from ltrain_train.runs.services import is_starting

START = 3.0
"""Seconds of a start; longer than the time in which a gateway that runs answers."""


class FakeGateway(BaseHTTPRequestHandler):
    """Answers as a gateway that serves the policy sql."""

    def do_GET(self) -> None:
        self._answer({"status": "ready", "policies": {"sql": 0}})

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers["content-length"]))
        PUBLISHED.append(json.loads(content)["version"])
        self._answer({"seconds": 0.1})

    def _answer(self, content: object) -> None:
        body = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Print nothing."""


PUBLISHED: list[int] = []


@pytest.fixture
def starting(monkeypatch: pytest.MonkeyPatch) -> HTTPServer:
    """A gateway that has bound its port and answers after START seconds."""
    server = HTTPServer(("127.0.0.1", 0), FakeGateway)
    monkeypatch.setenv("LTRAIN_GATEWAY", f"http://127.0.0.1:{server.server_address[1]}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    PUBLISHED.clear()
    return server


def test_a_gateway_that_is_starting_is_awaited(
    starting: HTTPServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def start() -> None:
        time.sleep(START)
        starting.serve_forever(0.05)

    thread = threading.Thread(target=start)
    thread.start()
    try:
        with find_gateway(tmp_path, "sql") as gateway:
            assert gateway is not None
            gateway.load("sql", 3)
        assert gateway._connection.http.is_closed
        with find_gateway(tmp_path, "other") as gateway:
            assert gateway is None
    finally:
        starting.shutdown()
        thread.join()
        starting.server_close()
    assert PUBLISHED == [3]
    assert caplog.messages == [
        "ltrain: waiting for the gateway, at most 300 s: its port is open, but it does not answer "
        "yet"
    ]


def test_a_gateway_that_never_answers_is_an_error_and_none_at_all_is_not(
    starting: HTTPServer, tmp_path: Path
) -> None:
    with (
        pytest.raises(NotReachable, match=r"does not answer within 0 s, but its port is open\. R"),
        find_gateway(tmp_path, "sql", timeout=0.1),
    ):
        raise AssertionError("it was found")
    starting.server_close()
    with find_gateway(tmp_path, "sql") as gateway:
        assert gateway is None


def test_a_program_that_speaks_no_http_is_not_a_service_that_starts() -> None:
    def greet() -> None:
        with server.accept()[0] as connection:
            connection.sendall(b"SSH-2.0-OpenSSH\r\n")
            connection.recv(1 << 12)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=greet)
        thread.start()
        assert not is_starting(f"http://127.0.0.1:{server.getsockname()[1]}/health")
        thread.join()
