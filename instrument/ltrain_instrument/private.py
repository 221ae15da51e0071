"""Folders that only their owner may enter, for traces, keys and weights."""

import errno
import os
from pathlib import Path

OWNER_ONLY = 0o700
"""Mode of every folder that ltrain creates, regardless of the umask."""

GROUP_AND_OTHERS = 0o077
"""Mode bits that give access to the group or to everybody."""


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
