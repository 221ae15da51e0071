"""Spans of gunicorn's workers, however its master stops them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.request import urlopen

import pytest
from tests.instrument.conftest import AGENTS, LAUNCHER

if TYPE_CHECKING:
    from tests.instrument.conftest import Sink

GUNICORN = Path(sys.executable).parent / "gunicorn"


@contextmanager
def _serve(sink: Sink, home: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("OTEL_", "LTRAIN_"))}
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": sink.url, "LTRAIN_HOME": str(home)}
    master = subprocess.Popen(
        [LAUNCHER, GUNICORN, "-b", "127.0.0.1:0", "--chdir", AGENTS, *options, "web:app"],
        env=inherited | environment | {"LTRAIN_ROLLOUT_ID": "r1"},
        cwd=home,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield master, _address(master)
    finally:
        master.kill()
        master.communicate()


def _address(master: subprocess.Popen[str]) -> str:
    """Return the address of the server once a worker runs; discard what it logs later."""
    assert master.stderr is not None
    address = ""
    for line in master.stderr:
        if match := re.search(r"Listening at: (\S+)", line):
            address = match[1]
        if "Booting worker" in line:
            break
    threading.Thread(target=master.stderr.read, daemon=True).start()
    return address


def _request_workers(url: str, times: int) -> set[int]:
    """Send requests and return the ids of the workers that answered."""
    return {int(urlopen(url, timeout=30).read()) for _ in range(times)}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT])
def test_spans_arrive_when_the_server_stops(
    sink: Sink, tmp_path: Path, number: signal.Signals
) -> None:
    with _serve(sink, tmp_path, "--workers", "2") as (master, url):
        requests_made, workers = 0, set[int]()
        while len(workers) < 2:  # a worker that is starting ignores its master
            workers |= _request_workers(url, 1)
            requests_made += 1
        master.send_signal(number)
        assert master.wait(20) == 0
    assert len(sink.named("/")) == requests_made
    counts = {
        span.resource["service.instance.id"]: span.attributes["ltrain.rollout.spans"]
        for span in sink.named("ltrain.process")
    }
    assert sum(counts.values()) == requests_made


def test_spans_arrive_when_the_server_reloads(sink: Sink, tmp_path: Path) -> None:
    with _serve(sink, tmp_path) as (master, url):
        [first] = _request_workers(url, 3)
        master.send_signal(signal.SIGHUP)
        sink.wait("ltrain.process")
        assert first not in _request_workers(url, 3)
        master.send_signal(signal.SIGTERM)
        assert master.wait(20) == 0
    assert len(sink.named("/")) == 6


def test_spans_arrive_when_a_worker_hangs(sink: Sink, tmp_path: Path) -> None:
    with _serve(sink, tmp_path, "--timeout", "2") as (master, url):
        _request_workers(url, 3)
        with suppress(OSError):  # the master aborts it
            urlopen(f"{url}/hang", timeout=30)
        _request_workers(url, 2)
        master.send_signal(signal.SIGTERM)
        assert master.wait(20) == 0
    assert len(sink.named("/")) == 5
