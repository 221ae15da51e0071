"""One process at a time for each run and each policy of a home.

* The lock is an flock on files in `locks/`, so the kernel frees it, however its holder ends.
* The guards of what the run starts hold it too: it is free when all of them have ended.
* A holder that is stopping, or that died while its guards still stop what it started, is waited
  for; one that goes on is not.
"""

import fcntl
import json
import math
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from ltrain_instrument.private import make_private
from ltrain_train.errors import RunInUse
from ltrain_train.pid import is_running

STOPPING = 180.0
"""Seconds that a run which is stopping is waited for."""
BUSY = 3.0
"""Seconds before a run that goes on is an error: it may be about to say that it stops."""
LOOK = 0.1
"""Seconds between two looks at it."""


class Holder(NamedTuple):
    """The process that holds a lock, as the lock's file names it."""

    pid: int
    stopping: bool

    @property
    def leaves(self) -> bool:
        """Whether it is stopping, or has ended and only its guards are left."""
        return self.stopping or not is_running(self.pid)


class RunLock:
    """A run's hold on its name and its policy."""

    def __init__(self, descriptors: tuple[int, ...]) -> None:
        self.descriptors = descriptors
        """Guards that inherit these hold the lock as well."""
        self.stopping = False
        self.unwinding = False
        """Whether the work has ended, and what it started is being stopped."""

    def stop(self) -> None:
        """Mark the lock as about to be free; calling it again is harmless."""
        self.stopping = True
        self.write()

    @contextmanager
    def working(self) -> Iterator[None]:
        """Hold the lock for work; after the block, for stopping."""
        try:
            yield
        finally:
            self.unwinding = True
            self.stop()

    def write(self) -> None:
        """Write into the files who holds the lock."""
        text = json.dumps({"pid": os.getpid(), "stopping": self.stopping}).encode()
        for descriptor in self.descriptors:
            os.pwrite(descriptor, text.ljust(64), 0)


@contextmanager
def run_lock(home: Path, *, run: str, policy: str | None = None) -> Iterator[RunLock]:
    """Hold the run's name, and the policy if it is trained, of `home` until the block ends.

    Raises:
        RunInUse: when another process has one of them, and is not about to leave it.
    """
    folder = make_private(home.absolute() / "locks")
    names = [f"run-{run}"] + ([] if policy is None else [f"policy-{policy}"])
    descriptors: list[int] = []
    try:
        for name in names:
            path = folder / f"{quote(name, safe='')}.lock"
            descriptors.append(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            _take(descriptors[-1], name.replace("-", " ", 1), home)
            lock = RunLock(tuple(descriptors))
            lock.write()  # now, for those who want this one while the next is waited for
        yield lock
    finally:
        for descriptor in reversed(descriptors):
            os.close(descriptor)


def _take(descriptor: int, name: str, home: Path) -> None:
    began, until = time.monotonic(), None
    while not _locked(descriptor):
        holder = _holder(descriptor)
        if holder is not None and not holder.leaves and time.monotonic() > began + BUSY:
            raise RunInUse(
                f"The {name} of {home} is in use by process {holder.pid}; each run and each policy "
                f"has one process at a time. Wait for its end, stop it with `kill {holder.pid}`, "
                "or choose another home with LTRAIN_HOME."
            )
        if until is None and holder is not None and holder.leaves:
            until = time.monotonic() + STOPPING
            print(
                f"ltrain: waiting for the run that is stopping (pid {holder.pid})",
                file=sys.stderr,
                flush=True,
            )
        if holder is not None and time.monotonic() > (until or math.inf):
            raise RunInUse(
                f"The {name} of {home} is still in use by process {holder.pid}, which has been "
                f"stopping for {STOPPING:g} s. End what is left of it, then try again."
            )
        time.sleep(LOOK)


def _locked(descriptor: int) -> bool:
    with suppress(BlockingIOError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def _holder(descriptor: int) -> Holder | None:
    """Return who holds the lock, or None while it is being written."""
    with suppress(ValueError, TypeError):
        return Holder(**json.loads(os.pread(descriptor, 64, 0)))
    return None
