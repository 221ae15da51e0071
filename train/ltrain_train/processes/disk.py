"""Checks for free disk space, and the errors for a full and for a read-only disk."""

import errno
from collections.abc import Sequence
from pathlib import Path

from ltrain_instrument.disk import read_disk
from ltrain_train.errors import DiskFull, DiskReadOnly

FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT)
FULL_MESSAGES = ("No space left on device", "Disk quota exceeded", "StorageFull", "os error 28")
"""Texts in the errors of libraries that do not raise OSError for a full disk."""
READ_ONLY_ERRNOS = (errno.EROFS,)
READ_ONLY_MESSAGES = ("Read-only file system", "ReadOnlyFilesystem", "os error 30")
"""The same for a read-only disk."""
MIN_FREE = 1 << 16
"""Bytes of free space below which a file system counts as full, whatever the error was."""


def require_space(folder: Path, size: int, what: str) -> None:
    """Raise `DiskFull` if the disk of `folder` has no room for `what`, of `size` bytes."""
    if size and free_bytes(folder) < size:
        raise disk_full_error(folder, what, size)


def disk_error(
    error: BaseException, folder: Path, what: str, size: int = 0
) -> DiskFull | DiskReadOnly | None:
    """Return the error of a disk that refused to write `what`; None if `error` has another cause.

    `size` is in bytes, 0 if unknown.
    """
    if _is_caused(error, FULL_ERRNOS, FULL_MESSAGES):
        return disk_full_error(folder, what, size)
    if _is_caused(error, READ_ONLY_ERRNOS, READ_ONLY_MESSAGES):
        return DiskReadOnly(
            f"The disk of {folder} is read-only: {what} cannot be written. No half-written file is "
            "used. Make it writable; `dmesg` says why the system made it read-only. Then run the "
            "same command again: it continues from the last checkpoint."
        )
    return None


def _is_caused(error: BaseException, errnos: Sequence[int], messages: Sequence[str]) -> bool:
    if isinstance(error, OSError) and error.errno in errnos:
        return True
    if any(message in str(error) for message in messages):
        return True
    return error.__cause__ is not None and _is_caused(error.__cause__, errnos, messages)


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
