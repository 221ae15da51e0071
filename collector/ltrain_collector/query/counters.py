"""What the ClickHouse port has done since it began: plain numbers."""

from dataclasses import dataclass, field

from ltrain_collector.ingest.counters import SECONDS, Tally


@dataclass(slots=True)
class QueryCounters:
    """Of all queries and inserts of that port."""

    running: int = 0
    """That have begun and not ended."""
    errors: int = 0
    """That failed, or were not let in."""
    seconds: Tally = field(default_factory=lambda: Tally(SECONDS))
    """From a query's begin to the last part of its answer."""
