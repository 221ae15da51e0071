"""Counters of the ClickHouse port since the process started."""

from collections import Counter
from dataclasses import dataclass, field

from ltrain_collector.errors import QueryFailed
from ltrain_collector.ingest import SECONDS_BOUNDS, Histogram

REASONS = {
    **{159: "seconds", 158: "rows", 241: "memory", 396: "size", 394: "ended"},
    **{306: "syntax", 718: "syntax", 452: "setting", 497: "denied"},
}
"""Why a query was refused or ended, by ClickHouse's error code."""


@dataclass(slots=True)
class QueryCounters:
    """Counters of all queries and inserts of the ClickHouse port."""

    running: int = 0
    """Queries that have started and not ended."""
    errors: int = 0
    """Queries that failed or were refused."""
    seconds: Histogram = field(default_factory=lambda: Histogram(SECONDS_BOUNDS))
    """Seconds from the start of a query to the last part of its response."""
    refused: Counter[str] = field(default_factory=Counter)
    """Queries that a limit, a queue or the role of a key refused or ended, by reason."""

    def failed(self, error: QueryFailed) -> None:
        """Count a query that failed."""
        self.errors += 1
        if error.code in REASONS:
            self.refused[REASONS[error.code]] += 1
