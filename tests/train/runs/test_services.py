"""Services of a run are started again until they have died too often."""

import logging
import os
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
from ltrain_train.gateway import GatewayClient, GatewayGivenUp
from ltrain_train.processes import MAX_DEATHS, free_port
from ltrain_train.runs import services
from ltrain_train.runs.retry import retry_load
from ltrain_train.runs.services import RequiredService, Services

WAIT = 60.0


@pytest.fixture
def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Services]:
    """Return a run's services; one of them sleeps until it is killed."""
    monkeypatch.setattr(services, "POLL", 0.05)
    made = Services(tmp_path, policies=["p"], serve=("--dtype", "float32"))
    idle = ("rollout", "--help")  # any command; the child only has to exist
    made._required = [RequiredService("gateway", "http://127.0.0.1:9/health", b"", idle, 60)]
    monkeypatch.setattr(sys, "executable", str(_sleeper(tmp_path)))
    made._start(made._required[0])
    with made:
        yield made


def _sleeper(folder: Path) -> Path:
    """Write a program that sleeps, whatever its arguments."""
    program = folder / "sleeper"
    guard = '[ "$1" = -I ] && exec python3 "$@"\n'  # it starts the guards of children, too
    program.write_text(f"#!/bin/sh\n{guard}exec sleep 600\n")
    program.chmod(0o755)
    return program


def test_a_killed_service_is_started_again_and_its_death_is_logged(
    running: Services, caplog: pytest.LogCaptureFixture
) -> None:
    watch = threading.Thread(target=running._restart_dead, daemon=True)
    first = running._started["gateway"].child
    with caplog.at_level(logging.WARNING):
        watch.start()
        os.killpg(first.pid, signal.SIGKILL)
        _until(lambda: running._started["gateway"].child is not first)
    assert caplog.messages == [
        "ltrain: the gateway ended by signal SIGKILL; starting it again",
    ]
    assert running._started["gateway"].child.alive
    running._stop_watching()
    watch.join(WAIT)
    assert not watch.is_alive()


def test_a_service_that_keeps_dying_is_not_started_again(
    running: Services, caplog: pytest.LogCaptureFixture
) -> None:
    watch = threading.Thread(target=running._restart_dead, daemon=True)
    watch.start()
    with caplog.at_level(logging.WARNING):
        for _ in range(MAX_DEATHS):
            child = running._started["gateway"].child
            os.killpg(child.pid, signal.SIGKILL)
            _until(
                lambda child=child: (
                    running._started["gateway"].child is not child or not watch.is_alive()
                )
            )
        watch.join(WAIT)
    assert not watch.is_alive()
    assert "3 times within 600 s; it is not started again" in caplog.messages[-1]
    client = GatewayClient(
        f"http://127.0.0.1:{free_port()}", "s" * 32, given_up=running.gateway_given_up
    )
    gave_up = r"The gateway ended by signal SIGKILL, 3 times .*Its log is .*gateway\.log\."
    with pytest.raises(GatewayGivenUp, match=gave_up):
        client.is_ready()
    with pytest.raises(GatewayGivenUp, match=gave_up):
        retry_load(lambda: client.load("p", 1), timeout=WAIT)


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
