"""Folders that only their owner may enter: traces, keys and weights are nobody else's."""

import errno
import os
from pathlib import Path

OWNER_ONLY = 0o700
"""Mode of every folder that ltrain makes, whatever the umask is."""

OTHERS = 0o077
"""Bits of a mode that let the group or everybody in."""


def make_private(folder: Path) -> Path:
    """Make a folder, and those above it that are missing; return it.

    A folder that exists keeps its mode: its owner may have opened it on purpose.

    Raises:
        OSError: when it cannot be made, or is something else.
    """
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    for each in reversed(missing):
        each.mkdir(OWNER_ONLY, exist_ok=True)
    if not folder.is_dir():
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(folder))
    return folder


def is_private(folder: Path) -> bool:
    """Return whether only the owner may enter a folder; True where there is none."""
    return not folder.exists() or not folder.stat().st_mode & OTHERS
