"""OpenTelemetry instruments of the queries and inserts of the ClickHouse port."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry.metrics import Meter, Observation

from ltrain_collector.errors import QueryFailed
from ltrain_collector.ingest import SECONDS_BOUNDS

REASONS = {
    **{159: "seconds", 158: "rows", 241: "memory", 396: "size", 394: "ended"},
    **{306: "syntax", 718: "syntax", 452: "setting", 497: "denied"},
}
"""Why a query was refused or ended, by ClickHouse's error code."""


class QueryInstruments:
    """Counts queries, their seconds and their errors."""

    def __init__(self, meter: Meter) -> None:
        self.running = 0
        """Queries that have started and not ended."""
        self._seconds = meter.create_histogram(
            "ltrain_collector_query_seconds",
            "s",
            "Seconds from the start of a query or insert of the ClickHouse port to the last part "
            "of its response; the count is the number of queries.",
            explicit_bucket_boundaries_advisory=SECONDS_BOUNDS,
        )
        self._errors = meter.create_counter(
            "ltrain_collector_query_errors_total",
            description="Queries of the ClickHouse port that failed or were refused.",
        )
        self._errors.add(0)
        self._refused = meter.create_counter(
            "ltrain_collector_queries_refused_total",
            description="Queries of the ClickHouse port that a limit ended (seconds, rows, memory, "
            "size, syntax), that their key does not allow (denied, setting), that got no slot "
            "(waiting, patience, stopping) or no memory (bytes), or that ended because the client "
            "disconnected or the server stopped (ended).",
        )
        meter.create_observable_gauge(
            "ltrain_collector_queries_running",
            [lambda _: [Observation(self.running)]],
            description="Queries of the ClickHouse port that are running.",
        )

    @contextmanager
    def measure_query(self) -> Iterator[None]:
        """Count the query that runs in the context, and its seconds."""
        self.running += 1
        begun = time.monotonic()
        try:
            yield
        finally:
            self.running -= 1
            self._seconds.record(time.monotonic() - begun)

    def count_error(self, reason: str = "") -> None:
        """Count a query that failed; with a reason if it was refused or ended."""
        self._errors.add(1)
        if reason:
            self._refused.add(1, {"reason": reason})

    def count_failure(self, error: QueryFailed) -> None:
        """Count a query that the engine failed."""
        self.count_error(REASONS.get(error.code, ""))
