"""How much more a folder of segments may hold, whoever fills it."""

import contextlib
import os
import time
from pathlib import Path

from ltrain_instrument.errors import SpoolFull

STRIDE = 8 << 20
"""Bytes that one process may add before it measures the folder again."""
PAUSE = 1.0
"""Seconds between two measurements of a full folder."""


class Allowance:
    """A folder's limit, shared by processes that do not talk: each may overdraw by a stride."""

    def __init__(self, directory: Path, limit: int) -> None:
        self._directory = directory
        self._limit = limit
        self._left = 0
        self._again = 0.0

    def take(self, size: int) -> None:
        """Reserve `size` bytes.

        Raises:
            SpoolFull: when the folder has reached its limit.
        """
        if size > self._left and time.monotonic() >= self._again:
            free = self._limit - _weight(self._directory)
            self._left = min(max(STRIDE, size), free)
            if size > self._left:
                self._again = time.monotonic() + PAUSE
        if size > self._left:
            raise SpoolFull(str(self._directory), self._limit >> 20)
        self._left -= size


def _weight(directory: Path) -> int:
    weight = 0
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):  # sent and removed meanwhile
                weight += entry.stat().st_size if entry.is_file() else 0
    return weight
