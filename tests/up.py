"""`ltrain up` on free ports, as a fork of the process of `tests/fork_server.py`."""

import os
import queue
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tests.empty_store import copy_empty_store
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
        return self.process.wait(STARTS_S)


def start_up(
    directory: Path,
    otlp: int = 0,
    sql: int = 0,
    *more: str,
    grpc: int = 0,
    within: Sequence[str] = (),
    environ: Mapping[str, str] = os.environ,
) -> Up:
    """Start `ltrain up`, on a copy of an empty store if the folder is new, and wait for its line.

    `within` is a command that runs it, then as a process that is not a fork, which migrates the
    store itself.
    """
    if not within and not directory.exists():
        copy_empty_store(directory)
    ports = ("--otlp-port", str(otlp), "--grpc-port", str(grpc), "--http-port", str(sql))
    argv = ("up", "--dir", str(directory), *more, *ports)
    # commands of a test find the addresses of that test
    home = {"LTRAIN_HOME": str(directory.absolute().parent)}
    process, listening = start_collector(argv, home | {**environ}, within)
    return Up(directory, process, *listening)


def start_collector(
    argv: Sequence[str],
    environ: Mapping[str, str],
    within: Sequence[str] = (),
    stderr: int | None = None,
) -> tuple["subprocess.Popen[str]", list[int]]:
    """Start `ltrain up`; return its process and the ports of OTLP/HTTP, OTLP/gRPC and SQL."""
    command = (*within, sys.executable, "-m", "ltrain") if within else (ltrain_command(),)
    process, line = start_server((*command, *argv), environ, r"ltrain: store ready", stderr)
    return process, [int(port) for port in re.findall(r"[\d.]+\.\d+:(\d+)", line)]


def start_server(
    command: Sequence[str], environ: Mapping[str, str], ready: str, stderr: int | None = None
) -> tuple["subprocess.Popen[str]", str]:
    """Start a server; return its process and its first line that matches `ready`.

    A thread reads all that the server prints, so that its pipe never fills.
    """
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=stderr, text=True, env=environ
    )
    lines: queue.Queue[str] = queue.Queue()
    threading.Thread(target=_read, args=(process.stdout, lines), daemon=True).start()
    printed = []
    with suppress(queue.Empty):
        while line := lines.get(timeout=STARTS_S):
            if re.match(ready, line):
                return process, line
            printed.append(line)
    process.kill()
    process.wait()
    raise AssertionError("".join(printed) or "nothing was printed")


def _read(stream: IO[str], lines: "queue.Queue[str]") -> None:
    with stream:
        for line in stream:
            lines.put(line)
    lines.put("")


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
