"""A store's folder, looked at before the engine opens it."""

import fcntl
import os
import re
from pathlib import Path

from ltrain_collector.errors import MEND, StoreDamaged, StoreGone, StoreInUse, unusable
from ltrain_instrument.private import make_private

FILES = {"data", "metadata", "metadata_dropped", "status", "store", "tmp", "uuid"}
"""Of which chDB makes some at once in a folder of its own."""


def check(directory: Path) -> None:
    """Make it where it is missing, and say what is wrong before chDB does, which prints C++ frames.

    Raises:
        StoreInUse: when another process has it.
        StoreUnusable: when it cannot be made, read or written, or is none.
        StoreDamaged: when files of its are missing.
    """
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
        raise _in_use(directory, holder)


def _check_files(directory: Path) -> None:
    """Keep chDB from making a new store among the files of something else, or of a broken one."""
    names = {each.name for each in directory.iterdir() if not each.name.startswith(".")}
    if names and not names & FILES:
        few = ", ".join(sorted(names)[:3])
        raise unusable(directory, f"is not a store: it holds {few}")
    metadata = directory / "metadata"
    data = directory / "store"
    kept = data.is_dir() and any(data.iterdir())
    lost = [each.stem for each in metadata.glob("*.sql") if not (metadata / each.stem).exists()]
    if lost or (kept and not any(metadata.glob("*.sql"))):
        gone = f"the tables of {', '.join(lost)}" if lost else f"{metadata}, which lists its tables"
        raise StoreDamaged(f"The store {directory} is damaged: {gone} are missing. {MEND}")


def _holder(status: Path) -> str:
    """Give the id of the process that has the folder open, '' where there is none."""
    try:
        with status.open("r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return ""
    except FileNotFoundError:
        return ""
    except BlockingIOError:
        found = re.search(r"PID: (\d+)", status.read_text())
        return found[1] if found else "unknown"


def _in_use(directory: Path, holder: str) -> StoreInUse:
    return StoreInUse(
        f"The store {directory} is in use by process {holder}; a folder has one process at a time. "
        "If that is `ltrain up`, reach it over HTTP: LTRAIN_STORE=http://127.0.0.1:8123 (its own "
        "port where it was given another); else end it first."
    )


class Presence:
    """Whether an open folder is still where it was opened, and not another one of its name."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._identity = _identity(directory)

    def check(self) -> None:
        """Raise `StoreGone` when the folder is not there: the engine would write into a new one."""
        if self._identity is None or _identity(self._directory) != self._identity:
            raise StoreGone(self._directory)


def _identity(directory: Path) -> tuple[int, int] | None:
    """Return what tells the lock file of an open store from any other file."""
    try:
        found = os.stat(directory / "status")
    except OSError:
        return None
    return found.st_dev, found.st_ino


def refusal(directory: Path, message: str) -> StoreInUse | StoreDamaged:
    """Give what is to be said where chDB refused to open it with `message`."""
    if "already initialized with path" in message:
        found = re.search(r"path '([^']*)'", message)
        return StoreInUse(
            f"The store {directory} cannot be opened while this process has "
            f"{found[1] if found else 'another'} open; close that one first."
        )
    if holder := _holder(directory / "status"):
        return _in_use(directory, holder)  # it was quicker than us
    return StoreDamaged(
        f"The store {directory} cannot be opened, its files are damaged or not chDB's: "
        f"{message.splitlines()[0]} {MEND}"
    )
