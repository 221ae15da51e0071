"""`ltrain up` on free ports, as a fork of the process of `tests/fork_server.py`."""

import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pytest
from tests.fork_server import forked, ltrain_command

from ltrain_collector.access import sign_owner, store_secret

FREE = ("--otlp-port", "0", "--grpc-port", "0", "--http-port", "0")
STARTS_S = 120.0
"""Seconds for what takes two on an idle machine."""


@dataclass
class Up:
    """A running `ltrain up`."""

    directory: Path
    process: subprocess.Popen[str]
    otlp: int
    grpc: int
    sql: int

    @property
    def pid(self) -> int:
        """The process that has the store open."""
        return forked(self.process.pid)

    @property
    def endpoint(self) -> str:
        """The address for OpenTelemetry's exporters."""
        return f"http://127.0.0.1:{self.otlp}"

    @property
    def dsn(self) -> str:
        return f"http://127.0.0.1:{self.sql}"

    @property
    def key(self) -> str:
        """An owner's key, as ltrain's own commands sign it."""
        return sign_owner(store_secret(self.directory), 3600)

    @property
    def owned(self) -> str:
        """The address with the owner's key, for changes of the store."""
        return f"http://owner:{self.key}@127.0.0.1:{self.sql}"

    def stop(self, number: int = signal.SIGTERM) -> int:
        os.kill(self.pid, number)
        return self.wait()

    def wait(self) -> int:
        """Return the exit code when the process ends."""
        code = self.process.wait(STARTS_S)
        assert self.process.stdout
        self.process.stdout.close()
        return code


def start_up(
    directory: Path,
    otlp: int = 0,
    sql: int = 0,
    *more: str,
    grpc: int = 0,
    within: tuple[str, ...] = (),
    environ: Mapping[str, str] = os.environ,
) -> Up:
    """Start `ltrain up` and wait for its line.

    `within` is a command that runs it, then as a process that is not a fork.
    """
    command = [*within, sys.executable, "-m", "ltrain"] if within else [ltrain_command()]
    ports = ("--otlp-port", str(otlp), "--grpc-port", str(grpc), "--http-port", str(sql))
    process = subprocess.Popen(
        [*command, "up", "--dir", str(directory), *more, *ports],
        stdout=subprocess.PIPE,
        text=True,
        env=environ,
    )
    assert process.stdout
    line = _line(process.stdout)
    if not line.startswith("ltrain: store ready"):
        process.kill()
        process.communicate()
        pytest.fail(line)
    listening = [int(port) for port in re.findall(r"[\d.]+\.\d+:(\d+)", line)]
    return Up(directory, process, *listening)


def _line(stream: IO[str], seconds: float = STARTS_S) -> str:
    poll = select.poll()  # chDB keeps descriptors: stores opened before may have taken the low ones
    poll.register(stream, select.POLLIN)
    return stream.readline() if poll.poll(seconds * 1000) else "nothing was printed"


@contextmanager
def running_up(
    directory: Path, *more: str, environ: Mapping[str, str] = os.environ
) -> Iterator[Up]:
    """Run `ltrain up` with a store in `directory`, and end it as ctrl-C does."""
    up = start_up(directory, 0, 0, *more, environ=environ)
    try:
        yield up
    finally:
        if up.process.poll() is None:
            up.stop(signal.SIGINT)
