"""The disk of a folder, and the part of it that only ltrain's own processes may fill."""

import os
from dataclasses import dataclass
from pathlib import Path

MAX_RESERVE = 1 << 30
"""Bytes of the reserve on a large disk."""
RESERVE_PERCENT = 5
"""Percent of a small disk."""


@dataclass(frozen=True, slots=True)
class Disk:
    """The size and the free space of a disk, in bytes, and whether it is read-only."""

    size: int
    free: int
    read_only: bool = False

    @property
    def reserve(self) -> int:
        """Bytes that senders other than ltrain's own processes leave free."""
        return min(MAX_RESERVE, self.size * RESERVE_PERCENT // 100)


def read_disk(folder: Path) -> Disk:
    """Return the disk of a folder, which need not exist yet."""
    existing = next(each for each in (folder, *folder.absolute().parents) if each.exists())
    found = os.statvfs(existing)
    read_only = bool(found.f_flag & os.ST_RDONLY)
    return Disk(found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize, read_only)
