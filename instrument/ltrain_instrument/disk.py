"""The disk of a folder, and the part of it that only ltrain's own processes may fill."""

import shutil
from dataclasses import dataclass
from pathlib import Path

MAX_RESERVE = 1 << 30
"""Bytes of the reserve on a large disk."""
RESERVE_PERCENT = 5
"""Percent of a small disk."""


@dataclass(frozen=True, slots=True)
class Disk:
    """The size and the free space of a disk, in bytes."""

    size: int
    free: int

    @property
    def reserve(self) -> int:
        """Bytes that senders other than ltrain's own processes leave free."""
        return min(MAX_RESERVE, self.size * RESERVE_PERCENT // 100)


def read_disk(folder: Path) -> Disk:
    """Return the disk of a folder, which need not exist yet."""
    existing = next(each for each in (folder, *folder.absolute().parents) if each.exists())
    usage = shutil.disk_usage(existing)
    return Disk(usage.total, usage.free)
