"""Child processes of one owner, each in its own session; all end with their owner.

* Every child runs under `ltrain_train.processes.guard`. When the owner stops the child, exits or is
  killed, the guard ends the child and everything the child started.
* A child may have a scratch folder for sockets and temporary files. Only this user can enter it;
  the guard removes it when the child and everything it started have ended.
* A child's output goes to its log file; an error quotes the last lines of the log.
* `start` raises `ChildDied` if the child dies before it is ready; `check` raises it afterwards.
"""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from ltrain_instrument.errors import LtrainError
from ltrain_instrument.files import make_private
from ltrain_train.processes import guard

GRACE = 10.0
"""Seconds between SIGTERM and SIGKILL."""
SWEEP_TIMEOUT = guard.SWEEP_GRACE + 3.0
POLL = 0.05
"""Seconds between two checks of a child that is not ready yet."""

MAX_DEATHS = 3
"""Deaths within `DEATH_WINDOW` after which a service is not started again."""

DEATH_WINDOW = 600.0
"""Seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command line, and the surroundings in which a child runs it."""

    argv: Sequence[str]
    log: Path
    """The file to which the output is appended."""
    env: Mapping[str, str | None] = field(default_factory=dict, repr=False)
    """Variables added to this process's environment; None removes a variable."""
    cwd: Path | None = None
    pass_fds: Sequence[int] = ()
    """Descriptors that the command inherits under the same numbers."""
    grace: float = GRACE
    """Seconds between SIGTERM and SIGKILL."""
    scratch: Path | None = None
    """Private folder that is made at the start, and removed when the child and everything that it
    started have ended."""

    def environ(self) -> dict[str, str]:
        """Return the environment of the command."""
        merged: dict[str, str | None] = {**os.environ, **self.env}
        return {name: value for name, value in merged.items() if value is not None}


class ChildDied(LtrainError, RuntimeError):
    """A child process ended before its owner stopped it."""


class ChildNotReady(ChildDied, TimeoutError):
    """A child process was not ready in time and has been stopped."""


class Child:
    """One command that runs or has ended."""

    def __init__(
        self,
        name: str,
        command: Command,
        process: subprocess.Popen[bytes],
        lifeline: int,
        log_start: int,
    ) -> None:
        self.name, self.log, self.grace = name, command.log, command.grace
        self.stopped = False
        """Whether the owner requested its end."""
        self._process = process
        self._lifeline = lifeline
        self._lock = threading.Lock()
        self._log_start = log_start
        """Size of the log before the start."""

    @property
    def pid(self) -> int:
        """Process id of the guard, which leads the child's session and process group."""
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """None while it runs; negative for a signal."""
        return self._process.poll()

    @property
    def alive(self) -> bool:
        """Whether the child runs."""
        return self.returncode is None

    def tail(self, lines: int = 15) -> str:
        """Return the last `lines` lines that this child wrote to its log."""
        with self.log.open("rb") as log:
            end = log.seek(0, os.SEEK_END)
            start = self._log_start if self._log_start <= end else 0  # a long log is cut
            log.seek(max(start, end - 64 * 1024))
            text = log.read().decode(errors="replace")
        return "\n".join(text.splitlines()[-lines:])

    def check(self) -> None:
        """Raise `ChildDied` if the child ended without being stopped."""
        if self.stopped or self.alive:
            return
        raise ChildDied(
            f"{self.name} ended {self.describe_exit()}. Its log is {self.log}; the last lines:\n"
            f"{self.tail() or '(empty)'}"
        )

    def describe_exit(self) -> str:
        """Return how the child ended, as "by signal SIGKILL" or "with exit status 1"."""
        status = self.returncode
        if status is not None and status < 0:
            return f"by signal {signal.Signals(-status).name}"
        return f"with exit status {status}"

    def wait(self, timeout: float | None = None) -> int:
        """Wait until the child ends and return its exit status.

        Raises:
            TimeoutError: when it still runs after `timeout` seconds.
        """
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired as error:
            raise TimeoutError(f"{self.name} still runs after {timeout:g} s.") from error

    def request_stop(self) -> None:
        """Request the child's end and return at once."""
        self.stopped = True
        with self._lock:  # after a second close the number may be another file's
            if self._lifeline >= 0:
                os.close(self._lifeline)
                self._lifeline = -1

    def stop(self) -> None:
        """End the child and everything it started: SIGTERM, then SIGKILL after its grace."""
        self.request_stop()
        try:
            self._process.wait(self.grace + SWEEP_TIMEOUT)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


class Children(ExitStack):
    """The child processes of one owner; leaving the `with` block stops them, last started first.

    The guard of each child keeps the descriptors `keep_open` open until everything that the child
    started has ended.
    """

    def __init__(self, keep_open: Sequence[int] = ()) -> None:
        super().__init__()
        self._keep_open = tuple(keep_open)
        self._children: list[Child] = []
        self._lock = threading.Lock()
        self._stopped = False
        self.callback(self.stop)

    def start(
        self,
        name: str,
        command: Command,
        *,
        ready: Callable[[], bool] | None = None,
        timeout: float = 120,
    ) -> Child:
        """Start a command and wait until `ready` returns True.

        Args:
            name: the child's name in errors.
            ready: called until it returns True; None returns at once.
            timeout: seconds until the child must be ready.

        Raises:
            ChildDied: when the program does not exist, the child ends before it is ready, or `stop`
                was called before.
            ChildNotReady: when the child is not ready after `timeout` seconds.
        """
        if shutil.which(command.argv[0]) is None:
            raise ChildDied(
                f"{name}: there is no program '{command.argv[0]}' ({shlex.join(command.argv)}). "
                "Install it, or add its folder to PATH."
            )
        with self._lock:
            if self._stopped:
                raise ChildDied(f"{name} is not started, because its owner is stopping.")
            child = _spawn(name, command, self._keep_open)
            self._children = [each for each in self._children if each.alive or not each.stopped]
            self._children.append(child)
        if ready is not None:
            _wait_ready(child, ready, timeout)
        return child

    def check(self) -> None:
        """Raise `ChildDied` for the first child that ended without being stopped."""
        for child in list(self._children):
            child.check()

    def stop(self) -> None:
        """Stop all children, last started first, and refuse new ones."""
        with self._lock:
            self._stopped = True
        for child in reversed(self._children):
            child.stop()


def _wait_ready(child: Child, ready: Callable[[], bool], timeout: float) -> None:
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


def _spawn(name: str, command: Command, keep_open: Sequence[int]) -> Child:
    scratch = command.scratch
    make_private(command.log.parent)
    if scratch is not None:
        make_private(scratch.parent)
        if scratch.exists():  # left by the previous start, whose guard was killed
            shutil.rmtree(scratch)
        scratch.mkdir(mode=0o700)
    inner, lifeline = os.pipe()
    descriptors = ",".join(map(str, keep_open))
    options = [str(inner), str(command.grace), descriptors, str(scratch or "")]
    try:
        with command.log.open("ab") as output:
            log_start = output.seek(0, os.SEEK_END)  # a short command writes and ends at once
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", guard.__file__, *options, *command.argv],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=command.environ(),
                cwd=command.cwd,
                pass_fds=(inner, *keep_open, *command.pass_fds),
                start_new_session=True,
            )
            return Child(name, command, process, lifeline, log_start)
    except BaseException:
        os.close(lifeline)
        if scratch is not None:
            scratch.rmdir()
        raise
    finally:
        os.close(inner)


class Supervised:
    """A command that its owner starts again when it dies."""

    def __init__(
        self,
        children: Children,
        name: str,
        *,
        ready: Callable[[], bool] | None = None,
        timeout: float = 120,
    ) -> None:
        """Describe the process; the arguments are those of `Children.start`."""
        self._children, self.name, self._ready, self._timeout = children, name, ready, timeout
        self._child: Child | None = None
        self._deaths = RestartLimit()

    @property
    def child(self) -> Child:
        """The process of the latest start."""
        if self._child is None:
            raise RuntimeError(f"{self.name} has not been started")
        return self._child

    def start(self, command: Command) -> None:
        """Start the command, the first time or again."""
        start = self._children.start
        self._child = start(self.name, command, ready=self._ready, timeout=self._timeout)

    def death(self) -> str:
        """Return how the process died since its latest start; '' while it runs.

        Raises:
            ChildDied: when it has died too often, so that it must not be started again.
        """
        child = self.child
        if child.alive:
            return ""
        if self._deaths.record_death():
            child.check()
        child.request_stop()  # marks its end as handled
        return child.describe_exit()


class RestartLimit:
    """Counts the recent deaths of one service."""

    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=MAX_DEATHS)

    def record_death(self) -> bool:
        """Record a death now and return whether the limit is reached."""
        self._times.append(time.monotonic())
        return len(self._times) == MAX_DEATHS and self._times[-1] - self._times[0] < DEATH_WINDOW
