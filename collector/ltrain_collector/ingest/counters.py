"""Counters of OTLP ingest since the process started, for `/health`, `/metrics` and the store."""

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field

ROWS_BOUNDS = (1, 8, 64, 512, 4096, 32768)
"""Histogram bounds of rows per insert."""

SECONDS_BOUNDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Histogram bounds of durations in seconds."""


class Histogram:
    """Counts of values up to each bound, and in the last count those above all bounds."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


@dataclass(slots=True)
class SignalCounters:
    """Counters of one signal."""

    requests: int = 0
    """Requests with a successful response."""
    accepted: int = 0
    """Stored records."""
    duplicates: int = 0
    """Accepted records of requests whose bytes had been stored before."""
    rejected: int = 0
    """Records of successful requests that were not stored: `partial_success`."""
    refused: Counter[str] = field(default_factory=Counter)
    """Requests that were not stored, by reason."""
    lag: Histogram = field(default_factory=lambda: Histogram(SECONDS_BOUNDS))
    """Seconds from a request's first byte to its commit."""


@dataclass(slots=True)
class TableCounters:
    """Counters of one table."""

    inserts: int = 0
    """Attempted inserts."""
    failures: int = 0
    """Requests whose rows the engine could not store."""
    inserted: int = 0
    """Stored rows, duplicates included."""
    rows: Histogram = field(default_factory=lambda: Histogram(ROWS_BOUNDS))
    """Rows per successful insert."""


@dataclass(slots=True)
class Counters:
    """Counters of all signals and tables."""

    signals: dict[str, SignalCounters]
    tables: dict[str, TableCounters]
