"""The collector's own metrics, one entry each, for `/metrics`, the store and the docs."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum

from ltrain_collector.ingest import Histogram, SignalCounters, TableCounters
from ltrain_collector.metrics.state import State

Value = float | Histogram
Readings = Iterable[tuple[tuple[str, ...], Value]]
"""Values, each with the values of the metric's labels."""


class Kind(StrEnum):
    COUNTER = "counter"
    """Only grows, from 0 at the start of the process."""
    GAUGE = "gauge"
    """The current value."""
    HISTOGRAM = "histogram"
    """Counts of values up to each bound, and their sum."""


@dataclass(frozen=True, slots=True)
class Measure:
    """One metric of the collector."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    doc: str
    read: Callable[[State], Readings]


def _plain(name: str, kind: Kind, doc: str, read: Callable[[State], Value]) -> Measure:
    return Measure(f"ltrain_collector_{name}", kind, (), doc, lambda state: [((), read(state))])


def _signals(name: str, kind: Kind, doc: str, read: Callable[[SignalCounters], Value]) -> Measure:
    def readings(state: State) -> Readings:
        return [((name,), read(of)) for name, of in state.counters.signals.items()]

    return Measure(f"ltrain_collector_{name}", kind, ("signal",), doc, readings)


def _tables(name: str, kind: Kind, doc: str, read: Callable[[TableCounters], Value]) -> Measure:
    def readings(state: State) -> Readings:
        return [((name,), read(of)) for name, of in state.counters.tables.items()]

    return Measure(f"ltrain_collector_{name}", kind, ("table",), doc, readings)


def _refused(state: State) -> Readings:
    for name, of in state.counters.signals.items():
        for reason, count in of.refused.items():
            yield (name, reason), count


def _rows(state: State) -> Readings:
    return [((name,), table.rows) for name, table in state.tables.items()]


def _bytes(state: State) -> Readings:
    return [((name,), table.bytes) for name, table in state.tables.items()]


COUNTER, GAUGE, HISTOGRAM = Kind.COUNTER, Kind.GAUGE, Kind.HISTOGRAM

MEASURES = (
    _signals(
        "requests_total",
        COUNTER,
        "OTLP requests with a successful response.",
        lambda of: of.requests,
    ),
    _signals("accepted_total", COUNTER, "Stored records.", lambda of: of.accepted),
    _signals(
        "rejected_total",
        COUNTER,
        "Records of successful requests that were not stored: partial_success.",
        lambda of: of.rejected,
    ),
    _signals(
        "doubled_total",
        COUNTER,
        "Accepted records of requests whose bytes had been stored before: they were sent again, "
        "and are read once.",
        lambda of: of.duplicates,
    ),
    Measure(
        "ltrain_collector_refused_total",
        COUNTER,
        ("signal", "reason"),
        "OTLP requests that were not stored: malformed, too_large, unsupported, too_slow, "
        "overloaded, engine.",
        _refused,
    ),
    Measure(
        "ltrain_collector_blocked_total",
        COUNTER,
        ("reason",),
        "Requests of all ports that were refused before they were read: origin, fetch_site, host, "
        "headers, descriptors, keys, denied.",
        lambda state: [((reason,), count) for reason, count in state.blocked.items()],
    ),
    _signals(
        "lag_seconds",
        HISTOGRAM,
        "Seconds from a request's first byte to its commit.",
        lambda of: of.lag,
    ),
    _plain(
        "waiting_bytes",
        GAUGE,
        "Bytes of requests that are being read, decoded or inserted.",
        lambda state: state.waiting,
    ),
    _tables("inserts_total", COUNTER, "Attempted inserts.", lambda of: of.inserts),
    _tables(
        "insert_failures_total",
        COUNTER,
        "Requests whose rows the engine could not store.",
        lambda of: of.failures,
    ),
    _tables(
        "inserted_rows_total",
        COUNTER,
        "Inserted rows, duplicates included.",
        lambda of: of.inserted,
    ),
    _tables(
        "rows_per_insert",
        HISTOGRAM,
        "Rows per successful insert.",
        lambda of: of.rows,
    ),
    _plain(
        "query_seconds",
        HISTOGRAM,
        "Seconds from the start of a query or insert of the ClickHouse port to the last part of "
        "its response; the count is the number of queries.",
        lambda state: state.queries.seconds,
    ),
    _plain(
        "query_errors_total",
        COUNTER,
        "Queries of the ClickHouse port that failed or were refused.",
        lambda state: state.queries.errors,
    ),
    Measure(
        "ltrain_collector_queries_refused_total",
        COUNTER,
        ("reason",),
        "Queries of the ClickHouse port that a limit ended (seconds, rows, memory, size, syntax), "
        "that their key does not allow (denied, setting), that got no slot (waiting, patience, "
        "stopping) or no memory (bytes), or that ended because the client disconnected or the "
        "server stopped (ended).",
        lambda state: [((reason,), count) for reason, count in state.queries.refused.items()],
    ),
    _plain(
        "queries_running",
        GAUGE,
        "Queries of the ClickHouse port that are running.",
        lambda state: state.queries.running,
    ),
    Measure(
        "ltrain_collector_store_rows",
        GAUGE,
        ("table",),
        "Rows on disk, duplicates that no merge has removed yet included.",
        _rows,
    ),
    Measure("ltrain_collector_store_bytes", GAUGE, ("table",), "Bytes on disk.", _bytes),
    _plain(
        "disk_free_bytes",
        GAUGE,
        "Free bytes of the store's disk.",
        lambda state: state.free,
    ),
    _plain(
        "disk_size_bytes",
        GAUGE,
        "Size of the store's disk in bytes.",
        lambda state: state.size,
    ),
    _plain(
        "resident_bytes",
        GAUGE,
        "Resident memory of the process, the engine included.",
        lambda state: state.resident,
    ),
    _plain("cpu_seconds_total", COUNTER, "CPU seconds of the process.", lambda state: state.cpu),
    _plain(
        "start_time_seconds",
        GAUGE,
        "Start of the process in Unix seconds.",
        lambda state: state.begun,
    ),
    _plain(
        "missed_rounds_total",
        COUNTER,
        "Rounds of these metrics that could not be stored.",
        lambda state: state.missed,
    ),
    Measure(
        "ltrain_collector_info",
        GAUGE,
        ("version",),
        "1, with ltrain's version as a label.",
        lambda state: [((state.program,), 1.0)],
    ),
)
