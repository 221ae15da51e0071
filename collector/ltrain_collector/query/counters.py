"""What the ClickHouse port has done since it began: plain numbers."""

from collections import Counter
from dataclasses import dataclass, field

from ltrain_collector.errors import QueryFailed
from ltrain_collector.ingest.counters import SECONDS, Tally

REASONS = {
    **{159: "seconds", 158: "rows", 241: "memory", 396: "size", 394: "ended"},
    **{306: "syntax", 718: "syntax", 452: "setting", 497: "denied"},
}
"""Why a query was refused or ended, by ClickHouse's number."""


@dataclass(slots=True)
class QueryCounters:
    """Of all queries and inserts of that port."""

    running: int = 0
    """That have begun and not ended."""
    errors: int = 0
    """That failed, or were not let in."""
    seconds: Tally = field(default_factory=lambda: Tally(SECONDS))
    """From a query's begin to the last part of its answer."""
    refused: Counter[str] = field(default_factory=Counter)
    """That a limit, a queue or a key's role ended or did not begin, by reason."""

    def failed(self, error: QueryFailed) -> None:
        """Count a query that failed."""
        self.errors += 1
        if error.code in REASONS:
            self.refused[REASONS[error.code]] += 1
