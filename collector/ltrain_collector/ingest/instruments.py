"""OpenTelemetry instruments of OTLP ingest; a request and an insert record a few values each."""

from collections.abc import Iterable

from opentelemetry.metrics import Counter, Meter

from ltrain_collector.signals import SIGNALS, TABLES, Rows, Signal

SECONDS_BOUNDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Histogram bounds of durations in seconds."""

ROWS_BOUNDS = (1.0, 8.0, 64.0, 512.0, 4096.0, 32768.0)
"""Histogram bounds of rows per insert."""


class IngestInstruments:
    """Counts requests, records and rows by signal and by table."""

    def __init__(self, meter: Meter) -> None:
        def by_signal(name: str, description: str) -> Counter:
            return _counter(meter, name, description, "signal", [each.name for each in SIGNALS])

        def by_table(name: str, description: str) -> Counter:
            return _counter(meter, name, description, "table", TABLES)

        self.requests = by_signal(
            "ltrain_collector_requests_total", "OTLP requests with a successful response."
        )
        self.accepted = by_signal("ltrain_collector_accepted_total", "Stored records.")
        self.rejected = by_signal(
            "ltrain_collector_rejected_total",
            "Records of successful requests that were not stored: partial_success.",
        )
        self.duplicates = by_signal(
            "ltrain_collector_doubled_total",
            "Accepted records of requests whose bytes had been stored before: they were sent "
            "again, and are read once.",
        )
        self.refused = meter.create_counter(
            "ltrain_collector_refused_total",
            description="OTLP requests that were not stored: malformed, too_large, unsupported, "
            "too_slow, overloaded, engine, minute, budget, reserve.",
        )
        self.lag = meter.create_histogram(
            "ltrain_collector_lag_seconds",
            "s",
            "Seconds from a request's first byte to its commit.",
            explicit_bucket_boundaries_advisory=SECONDS_BOUNDS,
        )
        self.inserts = by_table("ltrain_collector_inserts_total", "Attempted inserts.")
        self.failures = by_table(
            "ltrain_collector_insert_failures_total",
            "Requests whose rows the engine could not store.",
        )
        self.inserted = by_table(
            "ltrain_collector_inserted_rows_total", "Inserted rows, duplicates included."
        )
        self.rows_per_insert = meter.create_histogram(
            "ltrain_collector_rows_per_insert",
            description="Rows per successful insert.",
            explicit_bucket_boundaries_advisory=ROWS_BOUNDS,
        )

    def count_stored(self, signal: Signal, rows: Rows, repeated: bool, lag: float) -> None:
        """Count a request with a successful response."""
        labels = {"signal": signal.name}
        self.requests.add(1, labels)
        self.accepted.add(rows.count, labels)
        if repeated:
            self.duplicates.add(rows.count, labels)
        if rows.rejected:
            self.rejected.add(rows.rejected, labels)
        self.lag.record(lag, labels)


def _counter(
    meter: Meter, name: str, description: str, label: str, values: Iterable[str]
) -> Counter:
    """Return a counter that is 0, and not absent, for each value of its label."""
    counter = meter.create_counter(name, description=description)
    for value in values:
        counter.add(0, {label: value})
    return counter
