"""The lock of a run and its policies, held for a block that ctrl-C or SIGTERM ends."""

import os
import select
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import FrameType

from ltrain_instrument.errors import LtrainError
from ltrain_train.processes import RunLock, disk_error, run_lock
from ltrain_transforms.datasets import interrupt_handler

STDERR = 2
"""The file descriptor."""


@contextmanager
def hold_lock(home: Path, run: str, policies: Sequence[str], after: str) -> Iterator[RunLock]:
    """Lock a run and policies for the block, which ctrl-C or SIGTERM ends.

    Args:
        after: what is printed about the time after a signal.

    Raises:
        RunInUse: when another process works on the run or a policy.
        DiskFull, DiskReadOnly: when the block failed because of the disk.
    """
    try:
        with (
            run_lock(home, run=run, policy=policies) as lock,
            interrupt_handler(partial(_on_signal, lock, after)),
        ):
            yield lock
    except Exception as error:  # Polars and Arrow raise their own errors
        if isinstance(error, LtrainError):
            raise
        file = getattr(error, "filename", None) or home
        refused = disk_error(error, Path(file), "what the run writes")
        if refused is None:
            raise
        raise refused from error


def _on_signal(lock: RunLock, after: str, number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt, which stops every child, and print that; later signals only print.

    Python swallows an interrupt that is raised inside a finalizer; then the next signal raises it
    again.
    """
    if lock.unwinding or _is_unwinding(sys.exception()):
        _write_stderr(f"still stopping; `kill -9 {os.getpid()}` ends it at once.")
        return
    lock.stop()
    _write_stderr(f"stopping; {after}.")
    raise KeyboardInterrupt


def _is_unwinding(error: BaseException | None) -> bool:
    """Return whether `error` is a KeyboardInterrupt, or was raised while one was handled."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


def _write_stderr(sentence: str) -> None:
    """Write to stderr from a signal handler, unbuffered, and only if that does not block."""
    with suppress(OSError):
        stderr = select.poll()
        stderr.register(STDERR, select.POLLOUT)
        if stderr.poll(0):
            os.write(STDERR, f"\nltrain: {sentence}\n".encode())
