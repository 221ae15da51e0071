"""Spans of gunicorn's workers, whichever way its master has them leave."""

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
def _served(sink: Sink, home: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("OTEL_", "LTRAIN_"))}
    given = {"OTEL_EXPORTER_OTLP_ENDPOINT": sink.url, "LTRAIN_HOME": str(home)}
    master = subprocess.Popen(
        [LAUNCHER, GUNICORN, "-b", "127.0.0.1:0", "--chdir", AGENTS, *options, "web:app"],
        env=kept | given | {"LTRAIN_ROLLOUT_ID": "r1"},
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
    """Give where it listens, once a worker runs; what it logs afterwards is read and forgotten."""
    assert master.stderr is not None
    found = ""
    for line in master.stderr:
        if at := re.search(r"Listening at: (\S+)", line):
            found = at[1]
        if "Booting worker" in line:
            break
    threading.Thread(target=master.stderr.read, daemon=True).start()
    return found


def _asked(url: str, times: int) -> set[int]:
    """Ask, and give the workers that answered."""
    return {int(urlopen(url, timeout=30).read()) for _ in range(times)}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT])
def test_a_server_that_is_stopped(sink: Sink, tmp_path: Path, number: signal.Signals) -> None:
    with _served(sink, tmp_path, "--workers", "2") as (master, url):
        asked, answered = 0, set[int]()
        while len(answered) < 2:  # one that is still starting does not hear its master
            answered |= _asked(url, 1)
            asked += 1
        master.send_signal(number)
        assert master.wait(20) == 0
    assert len(sink.named("/")) == asked
    counted = {
        span.resource["service.instance.id"]: span.attributes["ltrain.rollout.spans"]
        for span in sink.named("ltrain.process")
    }
    assert sum(counted.values()) == asked


def test_a_server_that_is_loaded_again(sink: Sink, tmp_path: Path) -> None:
    with _served(sink, tmp_path) as (master, url):
        [first] = _asked(url, 3)
        master.send_signal(signal.SIGHUP)
        sink.wait("ltrain.process")
        assert first not in _asked(url, 3)
        master.send_signal(signal.SIGTERM)
        assert master.wait(20) == 0
    assert len(sink.named("/")) == 6


def test_a_worker_that_hangs(sink: Sink, tmp_path: Path) -> None:
    with _served(sink, tmp_path, "--timeout", "2") as (master, url):
        _asked(url, 3)
        with suppress(OSError):  # the master aborts it
            urlopen(f"{url}/hang", timeout=30)
        _asked(url, 2)
        master.send_signal(signal.SIGTERM)
        assert master.wait(20) == 0
    assert len(sink.named("/")) == 5
