"""Locks that allow one process at a time for each run, each policy and the GPU of a home.

* A lock is an flock on a file in `locks/`: the kernel releases it however its holder ends.
* The guards of the run's child processes hold the lock too: it is free when all of them have ended.
* A process waits for a holder that is stopping, or that died while its guards still stop its
  children. It does not wait for a holder that keeps working.
"""

import fcntl
import json
import math
import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from ltrain_instrument.files import make_private
from ltrain_instrument.machine import is_running
from ltrain_train.errors import RunInUse

STOP_TIMEOUT = 180.0
"""Seconds to wait for a run that is stopping."""
BUSY_TIMEOUT = 3.0
"""Seconds until a working holder is an error: it may be about to mark itself as stopping."""
POLL = 0.1
"""Seconds between two attempts to take the lock."""


class Holder(NamedTuple):
    """The process that holds a lock, as the lock file records it."""

    pid: int
    stopping: bool

    @property
    def is_leaving(self) -> bool:
        """Whether the holder is stopping, or has ended and only its guards are left."""
        return self.stopping or not is_running(self.pid)


class RunLock:
    """The locks that a run holds on its name and its policy."""

    def __init__(self, descriptors: tuple[int, ...]) -> None:
        self.descriptors = descriptors
        """File descriptors of the locks; a guard that inherits them holds the locks too."""
        self.stopping = False
        self._blocks = 0
        """The blocks of work that are open, one in the other."""
        self.unwinding = False
        """Whether the work has ended and its child processes are being stopped."""

    def stop(self) -> None:
        """Record that the holder is stopping; a second call changes nothing."""
        self.stopping = True
        self.write()

    @contextmanager
    def working(self) -> Iterator[None]:
        """Run a block of work; after the outermost one, record that the holder is stopping."""
        self._blocks += 1
        try:
            yield
        finally:
            self._blocks -= 1
            if not self._blocks:
                self.unwinding = True
                self.stop()

    def write(self) -> None:
        """Write the holder's process id and state into the lock files."""
        text = json.dumps({"pid": os.getpid(), "stopping": self.stopping}).encode()
        for descriptor in self.descriptors:
            os.pwrite(descriptor, text.ljust(64), 0)


class GpuTurn:
    """The turn of one process on a GPU whose memory a learner and vLLM use in turn.

    It is a lock of the home: a process that dies ends its turn.
    """

    def __init__(self, home: Path) -> None:
        folder = make_private(home.absolute() / "locks")
        self.descriptor = os.open(folder / "gpu.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def take(self, seconds: float = math.inf) -> bool:
        """Take the turn, or keep it; return whether it was free within `seconds`."""
        until = time.monotonic() + seconds
        while not _try_lock(self.descriptor):
            if time.monotonic() >= until:
                return False
            time.sleep(POLL)
        return True

    def end(self) -> None:
        """End the turn."""
        fcntl.flock(self.descriptor, fcntl.LOCK_UN)

    def close(self) -> None:
        """Close the lock's file, which ends the turn."""
        os.close(self.descriptor)


@contextmanager
def run_lock(
    home: Path, *, run: str | None = None, policy: str | Iterable[str] | None = None
) -> Iterator[RunLock]:
    """Lock a run name of `home` and policies that are trained, replaced or evaluated in a block.

    Raises:
        RunInUse: when another process holds one of the locks and is not stopping.
    """
    folder = make_private(home.absolute() / "locks")
    policies = (policy,) if isinstance(policy, str) else sorted(set(policy or ()))
    names = [*((f"run-{run}",) if run else ()), *(f"policy-{name}" for name in policies)]
    descriptors: list[int] = []
    try:
        for name in names:
            path = folder / f"{quote(name, safe='')}.lock"
            descriptors.append(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            _acquire(descriptors[-1], name.replace("-", " ", 1), home)
            lock = RunLock(tuple(descriptors))
            lock.write()  # others may wait for this lock while this process waits for the next
        yield lock
    finally:
        for descriptor in reversed(descriptors):
            os.close(descriptor)


def _acquire(descriptor: int, name: str, home: Path) -> None:
    began, until = time.monotonic(), None
    while not _try_lock(descriptor):
        holder = _read_holder(descriptor)
        if holder is not None and not holder.is_leaving and time.monotonic() > began + BUSY_TIMEOUT:
            raise RunInUse(
                f"The {name} of {home} is in use by process {holder.pid}; only one process at a "
                "time may work on a run or a policy. Wait until it ends, stop it with "
                f"`kill {holder.pid}`, or choose another home with LTRAIN_HOME."
            )
        if until is None and holder is not None and holder.is_leaving:
            until = time.monotonic() + STOP_TIMEOUT
            print(
                f"ltrain: waiting for the run that is stopping (pid {holder.pid})",
                file=sys.stderr,
                flush=True,
            )
        if holder is not None and time.monotonic() > (until or math.inf):
            raise RunInUse(
                f"The {name} of {home} is still in use by process {holder.pid}, which has been "
                f"stopping for {STOP_TIMEOUT:g} s. End that process and its children, then try "
                "again."
            )
        time.sleep(POLL)


def _try_lock(descriptor: int) -> bool:
    with suppress(BlockingIOError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def _read_holder(descriptor: int) -> Holder | None:
    """Return the holder of the lock, or None while the file is being written."""
    with suppress(ValueError, TypeError):
        return Holder(**json.loads(os.pread(descriptor, 64, 0)))
    return None
