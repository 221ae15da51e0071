"""Child processes under one owner: each in a session of its own, none left behind.

* Every child runs under `ltrain_train.guard`. When the owner stops it, ends or is killed, however
  hard, the guard ends the child and everything the child started.
* A child may have a scratch folder, for sockets and temporary files. Only this user can enter it;
  the guard removes it when the child and all it started have ended.
* What a child prints goes to its log file; an error quotes the log's last lines.
* A child that dies at its start is a `ChildDied` there; one that dies later is a `ChildDied` at
  the next `check()`.
"""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from ltrain_instrument.errors import LtrainError
from ltrain_instrument.private import make_private
from ltrain_train import guard

GRACE = 10.0
"""Seconds between SIGTERM and SIGKILL."""
SWEEP = guard.STRAGGLERS + 3.0
POLL = 0.05
"""Seconds between two looks at a child that is not ready yet."""


class ChildDied(LtrainError, RuntimeError):
    """A child process ended before it was told to."""


class ChildNotReady(ChildDied, TimeoutError):
    """A child process runs, but was not ready in time; it has been stopped."""


class Child:
    """One command, running or ended."""

    def __init__(
        self, name: str, process: subprocess.Popen[bytes], lifeline: int, log: Path, grace: float
    ) -> None:
        self.name = name
        self.log = log
        self.grace = grace
        """Seconds it has between SIGTERM and SIGKILL."""
        self.stopped = False
        """Whether its end was asked for."""
        self._process = process
        self._lifeline = lifeline
        self._log_start = log.stat().st_size

    @property
    def pid(self) -> int:
        """The leader of the child's session and process group: its guard."""
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """None while it runs; negative for a signal."""
        return self._process.poll()

    @property
    def alive(self) -> bool:
        return self.returncode is None

    def tail(self, lines: int = 15) -> str:
        """Return the last lines that this child wrote to its log."""
        with self.log.open("rb") as log:
            end = log.seek(0, os.SEEK_END)
            log.seek(max(self._log_start, end - 64 * 1024))
            text = log.read().decode(errors="replace")
        return "\n".join(text.splitlines()[-lines:])

    def check(self) -> None:
        """Raise `ChildDied` when it ended without being told to."""
        if self.stopped or self.alive:
            return
        raise ChildDied(
            f"{self.name} ended {self.ending()}. Its log is {self.log}; the last lines:\n"
            f"{self.tail() or '(empty)'}"
        )

    def ending(self) -> str:
        """Return how it ended."""
        status = self.returncode
        if status is not None and status < 0:
            return f"by signal {signal.Signals(-status).name}"
        return f"with exit status {status}"

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its own end and return the exit status.

        Raises:
            TimeoutError: when it runs on.
        """
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired as error:
            raise TimeoutError(f"{self.name} still runs after {timeout:g} s.") from error

    def ask(self) -> None:
        """Ask for its end and return at once."""
        self.stopped = True
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1

    def stop(self) -> None:
        """End it and all it started: SIGTERM, and SIGKILL when its grace is over."""
        self.ask()
        try:
            self._process.wait(self.grace + SWEEP)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


class Children:
    """The child processes of one owner; leaving the `with` block stops them, last started first.

    `held` are descriptors that the guard of each child keeps open until all of it has ended.
    """

    def __init__(self, held: Sequence[int] = ()) -> None:
        self._held = tuple(held)
        self._children: list[Child] = []
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def start(
        self,
        name: str,
        argv: Sequence[str],
        *,
        env: Mapping[str, str | None] | None = None,
        log: Path,
        ready: Callable[[], bool] | None = None,
        timeout: float = 120,
        cwd: Path | None = None,
        pass_fds: Sequence[int] = (),
        grace: float = GRACE,
        scratch: Path | None = None,
    ) -> Child:
        """Start a command and, where `ready` is given, wait until it returns True.

        `env` is laid over this process's environment; None removes a variable. `pass_fds` are open
        in the command under the same numbers. Output is appended to `log`. `scratch` is made,
        for this user alone, and removed when the child and all it started have ended.

        Raises:
            ChildDied: when there is no such program, or it ends before it is ready.
            ChildNotReady: when it is not ready after `timeout` seconds.
        """
        if shutil.which(argv[0]) is None:
            raise ChildDied(f"{name}: there is no program '{argv[0]}' ({shlex.join(argv)}).")
        child = _spawn(
            name, argv, _environment(env), log, cwd, pass_fds, grace, self._held, scratch
        )
        with self._lock:
            self._children = [each for each in self._children if each.alive or not each.stopped]
            self._children.append(child)
        if ready is not None:
            _await(child, ready, timeout)
        return child

    def check(self) -> None:
        """Raise `ChildDied` for the first child that ended without being told to."""
        for child in list(self._children):
            child.check()

    def stop(self) -> None:
        """Stop all, the last started first; calling it again is harmless."""
        while children := list(self._children):
            for child in reversed(children):
                child.stop()
            with self._lock:
                self._children = [each for each in self._children if each not in children]


def _await(child: Child, ready: Callable[[], bool], timeout: float) -> None:
    until = time.monotonic() + timeout
    while True:
        child.check()
        if child.stopped:
            raise ChildDied(f"{child.name} was stopped before it was ready.")
        if ready():
            return
        if time.monotonic() > until:
            child.stop()
            raise ChildNotReady(
                f"{child.name} was not ready after {timeout:g} s and has been stopped. "
                f"Its log is {child.log}; the last lines:\n{child.tail() or '(empty)'}"
            )
        time.sleep(POLL)


def _spawn(
    name: str,
    argv: Sequence[str],
    environ: dict[str, str],
    log: Path,
    cwd: Path | None,
    pass_fds: Sequence[int],
    grace: float,
    held: Sequence[int],
    scratch: Path | None,
) -> Child:
    make_private(log.parent)
    if scratch is not None:
        make_private(scratch.parent)
        if scratch.exists():  # of the start before, whose guard was killed
            shutil.rmtree(scratch)
        scratch.mkdir(mode=0o700)
    inner, lifeline = os.pipe()
    kept = ",".join(map(str, held))
    options = [str(inner), str(grace), kept, str(scratch or "")]
    guarded = [sys.executable, "-I", "-S", guard.__file__, *options, *argv]
    try:
        with log.open("ab") as output:
            process = subprocess.Popen(
                guarded,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environ,
                cwd=cwd,
                pass_fds=(inner, *held, *pass_fds),
                start_new_session=True,
            )
            return Child(name, process, lifeline, log, grace)
    except BaseException:
        os.close(lifeline)
        if scratch is not None:
            scratch.rmdir()
        raise
    finally:
        os.close(inner)


def _environment(over: Mapping[str, str | None] | None) -> dict[str, str]:
    laid: dict[str, str | None] = {**os.environ, **(over or {})}
    return {name: value for name, value in laid.items() if value is not None}
