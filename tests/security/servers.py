"""Start `ltrain up` and `ltrain serve` as a user does, on free ports, for tests of attacks."""

import os
import queue
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.fork_server import ltrain_command
from tests.http_requests import Answer, ask
from tests.train.gateway.conftest import write_model
from tests.up import FREE

from ltrain_collector.access import sign_owner, store_secret

WAIT = 120.0
"""Seconds for what takes three on an idle machine."""


@dataclass(frozen=True, slots=True)
class Up:
    """A running `ltrain up`."""

    process: subprocess.Popen[str]
    home: Path
    otlp: int
    grpc: int
    sql: int

    @property
    def dsn(self) -> str:
        """The address as any program of this machine knows it."""
        return f"http://127.0.0.1:{self.sql}"

    @property
    def owner(self) -> dict[str, str]:
        """The headers of the store's owner."""
        key = sign_owner(store_secret(self.home / "store"), 3600)
        return {"Authorization": f"Bearer {key}"}

    def run(self, sql: str, method: str = "POST", **headers: str) -> Answer:
        """Run a statement as a program would."""
        return ask(self.sql, method, "/", sql, headers)

    def blocked(self, **headers: str) -> dict[str, int]:
        """Return the counts of refusals by reason, from `/metrics`."""
        text = ask(self.otlp, "GET", "/metrics", headers=headers).text
        found = re.findall(r'^ltrain_collector_blocked_total{reason="(\w+)"} (\S+)$', text, re.M)
        return {reason: int(float(count)) for reason, count in found}


@contextmanager
def collector(home: Path, *more: str, within: Sequence[str] = ()) -> Iterator[Up]:
    """Run `ltrain up` with `home` as its LTRAIN_HOME; `within` is a command that runs it."""
    command = (*within, sys.executable, "-m", "ltrain") if within else (ltrain_command(),)
    argv = (*command, "up", *FREE, *more)
    with _running(argv, {"LTRAIN_HOME": str(home)}) as (process, line):
        ready = line(r"ltrain: store ready")
        otlp, grpc, sql = (int(port) for port in re.findall(r":(\d{2,5})\b", ready))
        yield Up(process, home, otlp, grpc, sql)


@contextmanager
def gateway(home: Path, upstream: str) -> Iterator[int]:
    """Run `ltrain serve` in front of a running policy server; yield the gateway's port."""
    command = (ltrain_command(), "serve", str(write_model(home.parent / "model")))
    argv = (*command, "--port", "0", "--upstream", upstream)
    nowhere = {"LTRAIN_HOME": str(home), "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}
    with _running(argv, nowhere) as (_, line):
        found = re.search(r"http://127\.0\.0\.1:(\d+)/v1", line(r".*gateway ready"))
        assert found is not None
        yield int(found[1])


@contextmanager
def _running(argv: Sequence[str], more: dict[str, str]) -> Iterator["_Running"]:
    environment = {
        name: text for name, text in os.environ.items() if not name.startswith("LTRAIN_")
    }
    process = subprocess.Popen(
        argv,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**environment, **more},
    )
    try:
        yield process, _Lines(process)
    finally:
        process.terminate()
        try:
            process.wait(WAIT)
        finally:
            process.kill()


class _Lines:
    """The output of a running process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._lines: queue.Queue[str] = queue.Queue()
        self._process = process
        self._all: list[str] = []
        threading.Thread(target=self._read, daemon=True).start()

    def __call__(self, pattern: str) -> str:
        """Wait for a line that begins with `pattern`."""
        while True:
            line = self._lines.get(timeout=WAIT)
            self._all.append(line)
            if re.match(pattern, line):
                return line
            assert line, "".join(self._all)

    def _read(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put("")
        self._process.stdout.close()


_Running = tuple[subprocess.Popen[str], _Lines]
