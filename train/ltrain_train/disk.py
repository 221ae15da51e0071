"""A full disk, in words: which folder, how much is needed, what to free."""

import errno
import shutil
from pathlib import Path

from ltrain_train.errors import DiskFull

FULL = (errno.ENOSPC, errno.EDQUOT)
WORDS = ("No space left on device", "Disk quota exceeded", "StorageFull", "os error 28")
"""How libraries that raise errors of their own name these two."""
MARGIN = 1 << 16
"""Bytes: a file system with less is full, whatever an error says."""


def require_space(folder: Path, size: int, what: str) -> None:
    """Raise `DiskFull` when the disk of `folder` has no room for `size` more bytes."""
    if size and free_bytes(folder) < size:
        raise disk_full(folder, what, size)


def is_full(error: BaseException) -> bool:
    """Return whether a full disk or quota caused `error`."""
    if isinstance(error, OSError) and error.errno in FULL:
        return True
    if any(words in str(error) for words in WORDS):
        return True
    return error.__cause__ is not None and is_full(error.__cause__)


def disk_full(folder: Path, what: str, size: int = 0) -> DiskFull:
    """Return the error of a disk without room for `what`, of `size` bytes where that is known."""
    needs = f"{what} needs about {_readable(size)}" if size else f"there is no room for {what}"
    return DiskFull(
        f"The disk of {folder} is full: {needs}, {_readable(free_bytes(folder))} are free. Nothing "
        "half-written is used. Free space there: finished runs/, datasets/ and old policies/ of "
        "LTRAIN_HOME may go, and `ltrain store prune --older-than DAYS` shrinks the store. Then "
        "the same command goes on from the last checkpoint."
    )


def free_bytes(folder: Path) -> int:
    """Return the bytes that are free on the disk of `folder`, which need not be there yet."""
    there = next(each for each in (folder, *folder.absolute().parents) if each.exists())
    return shutil.disk_usage(there).free


def _readable(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"
