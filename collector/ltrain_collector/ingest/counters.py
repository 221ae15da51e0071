"""What a collector has done since it began: plain numbers, for `/health` and for whoever asks."""

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field

ROWS = (1, 8, 64, 512, 4096, 32768)
"""Bounds of rows in one insert."""

SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Bounds of the time from a request's arrival to its commit."""


class Tally:
    """How often a measure was at most each bound; the last count is of what was beyond them all."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


@dataclass(slots=True)
class SignalCounters:
    """Of one signal."""

    requests: int = 0
    """Requests that were answered with success."""
    accepted: int = 0
    """Records that are stored."""
    doubled: int = 0
    """Accepted records whose request had been stored before, byte for byte."""
    rejected: int = 0
    """Records of answered requests that cannot be: `partial_success`."""
    refused: Counter[str] = field(default_factory=Counter)
    """Requests that were not taken, by reason."""
    lag: Tally = field(default_factory=lambda: Tally(SECONDS))
    """Seconds from a request's first byte to its commit."""


@dataclass(slots=True)
class TableCounters:
    """Of one table."""

    inserts: int = 0
    """Inserts that were tried."""
    failures: int = 0
    """Requests whose rows the engine refused."""
    inserted: int = 0
    """Rows that are stored, copies included."""
    rows: Tally = field(default_factory=lambda: Tally(ROWS))
    """Rows of one insert that was made."""


@dataclass(slots=True)
class Counters:
    """Of all signals and tables."""

    signals: dict[str, SignalCounters]
    tables: dict[str, TableCounters]
