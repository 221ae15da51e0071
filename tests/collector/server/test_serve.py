import signal
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from tests.fork_server import ltrain_command
from tests.http_requests import ask, post
from tests.up import FREE

from ltrain_collector.store import Store


def ltrain(*argv: str) -> subprocess.CompletedProcess[str]:
    command = [ltrain_command(), *argv]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


PORTS = {"--otlp-port": "otlp", "--grpc-port": "grpc", "--http-port": "sql"}


@pytest.mark.parametrize(("option", "port"), PORTS.items())
def test_a_port_that_is_taken_is_reported(up: Any, tmp_path: Path, option: str, port: str) -> None:
    taken = str(getattr(up, port))
    free = [word for name in PORTS if name != option for word in (name, "0")]
    done = ltrain("up", "--dir", str(tmp_path / "s"), option, taken, *free)
    assert done.returncode == 1
    assert f"Port {taken} on 127.0.0.1 is taken" in done.stderr
    assert option in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "s").exists()


def test_a_folder_that_is_in_use_is_reported(up: Any) -> None:
    done = ltrain("up", "--dir", str(up.directory), *FREE)
    assert done.returncode == 1
    assert f"in use by process {up.pid}" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_folder_that_cannot_be_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    argv = ("up", "--dir", str(tmp_path / "file" / "store"), *FREE)
    done = ltrain(*argv)
    assert done.returncode == 1
    assert "Not a directory" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_secret_that_cannot_be_read_is_reported(
    start: Callable[..., Any], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "store.secret").mkdir()
    up = start(tmp_path / "store")
    assert ask(up.sql, "POST", "/", "SELECT 1").text == "1\n"
    assert f"secret {tmp_path}/store.secret cannot be read or created (Is a directory)" in (
        capfd.readouterr().err
    )
    assert up.stop() == 0


def test_an_invalid_port_is_a_usage_error() -> None:
    assert ltrain("up", "--otlp-port", "70000").returncode == 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_open_inserts_are_finished_before_the_end(
    start: Callable[..., Any],
    request_of: Callable[..., bytes],
    tmp_path: Path,
    number: signal.Signals,
) -> None:
    up = start(tmp_path / "store")
    bodies = [request_of((trace, 1)) for trace in range(1, 9)]
    connections = [_begin_insert(up.otlp, len(body)) for body in bodies]
    up.process.send_signal(number)
    _wait_until_closed(up.otlp)
    for connection, body in zip(connections, bodies, strict=True):
        connection.send(body)
    for connection in connections:
        assert connection.getresponse().status == 200
        connection.close()
    assert up.wait() == 0
    with Store.open(f"chdb://{tmp_path}/store") as store:
        assert store.query("SELECT count() AS n FROM otel.spans")["n"].item() == 8


def _begin_insert(port: int, length: int) -> HTTPConnection:
    """Return a connection whose server waits for a request's body of `length` bytes."""
    connection = HTTPConnection("127.0.0.1", port, timeout=30)
    connection.putrequest("POST", "/v1/traces")
    connection.putheader("Content-Type", "application/x-protobuf")
    connection.putheader("Content-Length", str(length))
    connection.putheader("Expect", "100-continue")
    connection.endheaders()
    with connection.sock.dup() as answer:
        status = b"HTTP/1.1 100 Continue\r\n\r\n"
        assert answer.recv(len(status), socket.MSG_WAITALL) == status
    return connection


def _wait_until_closed(port: int) -> None:
    """Return when nothing listens on the port."""
    with suppress(ConnectionError):
        while True:
            socket.create_connection(("127.0.0.1", port), timeout=30).close()
            time.sleep(0.01)


def test_what_was_stored_is_there_after_a_restart(
    start: Callable[..., Any], request_of: Callable[..., bytes], tmp_path: Path
) -> None:
    first = start(tmp_path / "store")
    assert post(first.otlp, request_of((1, 1), (1, 2))).status == 200
    assert first.stop() == 0
    second = start(tmp_path / "store", first.otlp, first.sql, grpc=first.grpc)
    assert (second.otlp, second.sql, second.grpc) == (first.otlp, first.sql, first.grpc)
    with Store.open(second.dsn) as store:
        assert store.query("SELECT SpanId FROM otel.spans").height == 2
