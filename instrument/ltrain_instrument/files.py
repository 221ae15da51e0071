"""Private folders, and files and folders that are complete or absent, however a process ends.

* The content is written beside its path, synced to the disk, and renamed into place. A reader sees
  the old content or the new content, never a part.
* The next write of the same path removes what a killed process left beside it. If the process was
  killed while it replaced a folder, the next write first puts the old folder back.
"""

import errno
import fcntl
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex

from ltrain_instrument.machine import is_running

OWNER_ONLY = 0o700
"""Mode of every folder that ltrain creates, regardless of the umask."""

GROUP_AND_OTHERS = 0o077
"""Mode bits that give access to the group or to everybody."""

OWNER_FILE = 0o600
"""Mode of a file that only its owner can read."""

PROBES = (0.0, 0.001, 0.005)
"""Seconds before each attempt of `is_held`: another process may be trying at the same moment."""

_DRAFT, _PREVIOUS = "part", "old"
_own_drafts: set[str] = set()


def make_private(folder: Path) -> Path:
    """Create a folder and its missing parents, and return it.

    An existing folder keeps its mode, because its owner may have opened it on purpose.

    Raises:
        OSError: when it cannot be created, or is not a folder.
    """
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    for each in reversed(missing):
        each.mkdir(OWNER_ONLY, exist_ok=True)
    if not folder.is_dir():
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(folder))
    return folder


def is_private(folder: Path) -> bool:
    """Return whether only the owner may enter a folder; True if there is none."""
    return not folder.exists() or not folder.stat().st_mode & GROUP_AND_OTHERS


def path_component(name: str) -> str:
    """Return a name, such as a run's, as the name of one file in a folder, and no other name's."""
    escaped = name.replace("%", "%25").replace("/", "%2F").replace("\0", "%00")
    return f"%2E{escaped[1:]}" if escaped.startswith(".") else escaped


def write_file(path: Path, content: str | bytes, mode: int = 0o666) -> None:
    """Write or replace a file; `mode` is subject to the umask."""
    with temporary_sibling(path) as draft:
        _write(draft, content, mode)
        move_into_place(draft, path)


def create_file(path: Path, content: str | bytes, mode: int = 0o666) -> bool:
    """Write a file unless it exists; return whether this call wrote it."""
    with temporary_sibling(path) as draft:
        _write(draft, content, mode)
        _sync(draft)
        try:
            os.link(draft, path)
        except FileExistsError:
            return False
        _sync(path.parent)
    return True


@contextmanager
def replace_directory(path: Path) -> Iterator[Path]:
    """Yield an empty private folder that replaces `path` if the block ends without an error."""
    with temporary_directory(path) as draft:
        yield draft
        previous = draft.with_suffix(f".{_PREVIOUS}")
        sync_tree(draft)
        if path.exists():
            path.rename(previous)
        draft.rename(path)
        _sync(path.parent)
        shutil.rmtree(previous, ignore_errors=True)


def finish_replacement(path: Path) -> None:
    """Put the old folder back at `path` if a process was killed while it replaced that folder.

    The next write of the path does so too.
    """
    if path.parent.is_dir():
        _sweep(path.absolute())


def move_into_place(draft: Path, path: Path) -> None:
    """Sync a file or folder and rename it to `path`, replacing a file or an empty folder there.

    Raises:
        OSError: when `path` is a folder with files.
    """
    sync_tree(draft)
    draft.rename(path)
    _sync(path.parent)


@contextmanager
def temporary_directory(path: Path) -> Iterator[Path]:
    """Yield an empty private folder beside `path`, which is removed if it is still there."""
    with temporary_sibling(path) as draft:
        draft.mkdir(OWNER_ONLY)
        yield draft


@contextmanager
def temporary_sibling(path: Path) -> Iterator[Path]:
    """Yield an unused path beside `path`, on the same file system; what is there is removed.

    The parents of `path` that do not exist are made private.
    """
    draft = sibling_path(path)
    try:
        yield draft
    finally:
        _remove(draft)
        _own_drafts.discard(draft.name)


def sibling_path(path: Path) -> Path:
    """Return an unused path beside `path`, which is swept after this process has ended."""
    path = path.absolute()
    make_private(path.parent)
    _sweep(path)
    draft = path.with_name(f".{path.name}.{os.getpid()}-{token_hex(4)}.{_DRAFT}")
    _own_drafts.add(draft.name)
    return draft


def sync_tree(path: Path) -> None:
    """Write a file, or a folder with everything in it, from the system's memory to the disk."""
    if path.is_dir():
        for each in path.iterdir():
            sync_tree(each)
    _sync(path)


def _sweep(path: Path) -> None:
    pattern = rf"\.{re.escape(path.name)}\.(\d+)-[0-9a-f]+\.({_DRAFT}|{_PREVIOUS})"
    for sibling in list(path.parent.iterdir()):
        match = re.fullmatch(pattern, sibling.name)
        if match is None or _is_in_use(int(match[1]), sibling.with_suffix(f".{_DRAFT}").name):
            continue
        if match[2] == _PREVIOUS and not path.exists():
            with suppress(OSError):  # another process was faster
                sibling.rename(path)
        else:
            _remove(sibling)


def _is_in_use(pid: int, draft: str) -> bool:
    # a container gives the same ids to the processes of its next start
    return draft in _own_drafts if pid == os.getpid() else is_running(pid)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink(missing_ok=True)


def _write(draft: Path, content: str | bytes, mode: int) -> None:
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def hold_file(path: Path) -> int:
    """Return a descriptor with a shared flock on a file or folder, which marks it as used.

    The kernel ends the mark when the descriptor is closed, however its process ends.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    return descriptor


def is_held(path: Path) -> bool:
    """Return whether `hold_file` marks a file or folder as used, in any process."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for pause in PROBES:
            time.sleep(pause)
            with suppress(BlockingIOError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return False
    finally:
        os.close(descriptor)
    return True
