"""Checks of a store's folder before and while the engine has it open."""

import fcntl
import os
import re
from pathlib import Path

from ltrain_collector.errors import RESTORE_HINT, StoreDamaged, StoreGone, StoreInUse, unusable
from ltrain_instrument.files import make_private

STORE_FILES = {"data", "metadata", "metadata_dropped", "status", "store", "tmp", "uuid"}
"""Names of which chDB creates at least one in every folder that it opens."""


def check_folder(directory: Path) -> None:
    """Create the folder where it is missing, and check it: chDB's own errors print C++ frames."""
    try:
        make_private(directory)
        probe = directory / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise unusable(directory, f"cannot be used: {error.strerror}") from error
    _check_files(directory)
    holder = _holder(directory / "status")
    if holder not in ("", str(os.getpid())):
        raise _in_use_error(directory, holder)


def _check_files(directory: Path) -> None:
    """Prevent chDB from creating a new store in a folder with other files or a damaged store."""
    names = {each.name for each in directory.iterdir() if not each.name.startswith(".")}
    if names and not names & STORE_FILES:
        few = ", ".join(sorted(names)[:3])
        raise unusable(directory, f"is not a store: it holds {few}")
    metadata = directory / "metadata"
    data = directory / "store"
    has_data = data.is_dir() and any(data.iterdir())
    missing_tables = [
        each.stem for each in metadata.glob("*.sql") if not (metadata / each.stem).exists()
    ]
    if missing_tables or (has_data and not any(metadata.glob("*.sql"))):
        missing = (
            f"the tables of {', '.join(missing_tables)}"
            if missing_tables
            else f"{metadata}, which lists its tables"
        )
        raise StoreDamaged(
            f"The store {directory} is damaged: {missing} are missing. {RESTORE_HINT}"
        )


def _holder(status: Path) -> str:
    """Return the id of the process that has the folder open, or ''."""
    try:
        with status.open("r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return ""
    except FileNotFoundError:
        return ""
    except BlockingIOError:
        match = re.search(r"PID: (\d+)", status.read_text())
        return match[1] if match else "unknown"


def _in_use_error(directory: Path, holder: str) -> StoreInUse:
    return StoreInUse(
        f"The store {directory} is in use by process {holder}; one process at a time can open a "
        "folder. If it is `ltrain up`, connect over HTTP: LTRAIN_STORE=http://127.0.0.1:8123 (or "
        "the port of its --http-port); otherwise stop that process first."
    )


class Presence:
    """Checks that an open folder still exists and was not replaced by another."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._identity = _identity(directory)

    def check(self) -> None:
        """Raise `StoreGone` if the folder is gone: the engine would write into a new one."""
        if self._identity is None or _identity(self._directory) != self._identity:
            raise StoreGone(self._directory)


def _identity(directory: Path) -> tuple[int, int] | None:
    """Return device and inode of the store's lock file."""
    try:
        match = os.stat(directory / "status")
    except OSError:
        return None
    return match.st_dev, match.st_ino


def open_error(directory: Path, message: str) -> StoreInUse | StoreDamaged:
    """Return the error for a folder that chDB refused to open with `message`."""
    if "already initialized with path" in message:
        match = re.search(r"path '([^']*)'", message)
        return StoreInUse(
            f"The store {directory} cannot be opened because this process has "
            f"{match[1] if match else 'another one'} open; close that one first."
        )
    if holder := _holder(directory / "status"):
        return _in_use_error(directory, holder)  # another process opened it after our check
    return StoreDamaged(
        f"The store {directory} cannot be opened; its files are damaged or were not made by chDB: "
        f"{message.splitlines()[0]} {RESTORE_HINT}"
    )
