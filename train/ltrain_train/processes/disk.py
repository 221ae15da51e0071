"""Checks for free disk space, and the error for a full disk."""

import errno
from pathlib import Path

from ltrain_instrument.disk import read_disk
from ltrain_train.errors import DiskFull

FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT)
FULL_MESSAGES = ("No space left on device", "Disk quota exceeded", "StorageFull", "os error 28")
"""Texts in the errors of libraries that do not raise OSError for a full disk."""
MIN_FREE = 1 << 16
"""Bytes of free space below which a file system counts as full, whatever the error was."""


def require_space(folder: Path, size: int, what: str) -> None:
    """Raise `DiskFull` if the disk of `folder` has no room for `what`, of `size` bytes."""
    if size and free_bytes(folder) < size:
        raise disk_full_error(folder, what, size)


def is_disk_full(error: BaseException) -> bool:
    """Return whether a full disk or an exceeded quota caused `error`."""
    if isinstance(error, OSError) and error.errno in FULL_ERRNOS:
        return True
    if any(message in str(error) for message in FULL_MESSAGES):
        return True
    return error.__cause__ is not None and is_disk_full(error.__cause__)


def disk_full_error(folder: Path, what: str, size: int = 0) -> DiskFull:
    """Return the error for a disk without room for `what`; `size` is in bytes, 0 if unknown."""
    needs = f"{what} needs about {_readable(size)}" if size else f"there is no room for {what}"
    return DiskFull(
        f"The disk of {folder} is full: {needs}, {_readable(free_bytes(folder))} are free. No "
        "half-written file is used. Free space there: `ltrain policy prune NAME --yes` removes old "
        "versions with their checkpoints, datasets/ of LTRAIN_HOME can be deleted, and `ltrain "
        "store prune --older-than DAYS` shrinks the store. Then run the same command again: "
        "it continues from the last checkpoint."
    )


def free_bytes(folder: Path) -> int:
    """Return the free bytes on the disk of `folder`, which need not exist yet."""
    return read_disk(folder).free


def _readable(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"
