"""A size limit for a folder that several processes fill."""

import contextlib
import os
import time
from pathlib import Path

from ltrain_instrument.errors import SpoolFull

RESERVATION = 8 << 20
"""Bytes that one process may add before it measures the folder again."""
REMEASURE_SECONDS = 1.0
"""Seconds between two measurements of a full folder."""


class DiskQuota:
    """The size limit of a folder in bytes.

    Processes that share the folder do not communicate: each may exceed the limit by one
    reservation.
    """

    def __init__(self, directory: Path, limit: int) -> None:
        self._directory = directory
        self._limit = limit
        self._reserved = 0
        self._measure_after = 0.0

    def reserve(self, size: int) -> None:
        """Reserve `size` bytes."""
        if size > self._reserved and time.monotonic() >= self._measure_after:
            free = self._limit - folder_size(self._directory)
            self._reserved = min(max(RESERVATION, size), free)
            if size > self._reserved:
                self._measure_after = time.monotonic() + REMEASURE_SECONDS
        if size > self._reserved:
            raise SpoolFull(str(self._directory), self._limit >> 20)
        self._reserved -= size


def folder_size(directory: Path) -> int:
    """Return the bytes of the files of a folder, without its subfolders."""
    total = 0
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):  # another process has removed it
                total += entry.stat().st_size if entry.is_file() else 0
    return total
