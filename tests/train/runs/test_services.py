"""Services of a run are started again when they die."""

import logging
import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from ltrain_train.errors import NotReachable
from ltrain_train.runs import services
from ltrain_train.runs.services import RequiredService, Services

WAIT = 60.0


@pytest.fixture
def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Services]:
    """Return a run's services; one of them sleeps until it is killed."""
    monkeypatch.setattr(services, "POLL", 0.05)
    monkeypatch.setattr(services, "PAUSES", (0, 0.2, 0.3))
    made = Services(tmp_path, policies=["p"], serve=("--dtype", "float32"))
    idle = ("rollout", "--help")  # any command; the child only has to exist
    monkeypatch.setattr(sys, "executable", str(_sleeper(tmp_path)))
    with ThreadingHTTPServer(("127.0.0.1", 0), Answering) as health, made:
        threading.Thread(target=health.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{health.server_port}/ping"
        made._required = [RequiredService("gateway", url, b"Ok", idle, 60)]
        made._start(made._required[0])
        health.state = {}  # type: ignore[attr-defined]
        assert made.ready()
        yield made
        health.shutdown()


def _sleeper(folder: Path) -> Path:
    """Write a program that sleeps, whatever its arguments."""
    program = folder / "sleeper"
    guard = '[ "$1" = -I ] && exec python3 "$@"\n'  # it starts the guards of children, too
    program.write_text(f"#!/bin/sh\n{guard}exec sleep 600\n")
    program.chmod(0o755)
    return program


def _kill(running: Services) -> None:
    """Kill the service, and wait until it runs again."""
    child = running._started["gateway"]
    os.killpg(child.pid, signal.SIGKILL)
    _until(lambda: running._started["gateway"] is not child)
    assert running._started["gateway"].alive


def _restarts(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return when each restart was, by the messages."""
    pattern = (
        r"ltrain: the gateway ended by signal SIGKILL; it is started again (.+)\. "
        r"Its log is .+/logs/gateway\.log"
    )
    found = [re.fullmatch(pattern, each) for each in caplog.messages]
    return [each[1] if each else "" for each in found]


def test_a_service_is_started_again_however_often_it_dies(
    running: Services, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(5):
        _kill(running)
    assert _restarts(caplog) == ["now", "in 0.2 s", "in 0.3 s", "in 0.3 s", "in 0.3 s"]


def test_a_death_after_ten_minutes_is_the_first_again(
    running: Services, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(services, "STEADY", 0.0)
    for _ in range(3):
        _kill(running)
    assert _restarts(caplog) == ["now", "now", "now"]


def test_a_service_that_the_system_refuses_to_start_is_tried_again(
    running: Services, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    logs = running.home / "logs"
    logs.rename(running.home / "away")
    logs.touch()  # no file can be opened below it
    threading.Timer(0.4, _restore, [logs]).start()
    _kill(running)
    refused = f"ltrain: the gateway cannot be started: [Errno 17] File exists: '{logs}'"
    assert refused in caplog.messages


def _restore(logs: Path) -> None:
    logs.unlink()
    logs.with_name("away").rename(logs)


def test_a_service_that_does_not_answer_yet_is_awaited_and_not_started_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        socket.create_server(("127.0.0.1", 0)) as other,
    ):
        for name, server in (("LTRAIN_STORE", silent), ("LTRAIN_GATEWAY", other)):
            monkeypatch.setenv(name, f"http://127.0.0.1:{server.getsockname()[1]}")
        with Services(tmp_path, policies=["p"]) as made, caplog.at_level(logging.WARNING):
            made.start()
            assert not made._started
            assert caplog.messages == [
                f"ltrain: waiting for the {name}: its port is open, but it does not answer yet"
                for name in ("store", "gateway")
            ]
            assert not made.ready()
            made._began -= 1000
            with pytest.raises(NotReachable, match=r"The store is not ready after 60 s\. It was"):
                made.ready()


def _until(condition: object) -> None:
    end = time.monotonic() + WAIT
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end
        time.sleep(0.02)


class Answering(BaseHTTPRequestHandler):
    """Answers as the store, and as a gateway in the server's state."""

    def do_GET(self) -> None:
        state: dict[str, str] = self.server.state  # type: ignore[attr-defined]
        body = b"Ok" if self.path == "/ping" else f'{{"status": "{state["gateway"]}"}}'.encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


def test_a_runner_opens_while_the_gateway_loads_its_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = {"gateway": "starting"}
    with ThreadingHTTPServer(("127.0.0.1", 0), Answering) as server:
        server.state = state  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for name in ("LTRAIN_STORE", "LTRAIN_GATEWAY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{server.server_port}")

        def open_it() -> list[str]:
            opened.append(state["gateway"])
            state["gateway"] = "ready"
            return opened

        opened: list[str] = []
        answers = iter([False, False, True])
        with Services(tmp_path, policies=["p"]) as made:
            made.start()
            assert made.open_runner(open_it, lambda: next(answers)) == ["starting"]
            assert next(answers, "none is left") == "none is left"
            # one that may not be opened before waits for the gateway
            state["gateway"] = "starting"
            threading.Timer(0.5, state.update, ({"gateway": "ready"},)).start()
            assert made.open_runner(open_it, lambda: False) == ["starting", "ready"]
        server.shutdown()
