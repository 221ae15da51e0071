"""Our tables and views: the SQL files of `ddl/`, and which of them a store needs.

A step is a file of statements that may run again at any time: `IF NOT EXISTS` in each. Steps are
only ever added, at the end of their signal's; a table is changed by a further step, never in its
first. Views are made anew each time.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files

DATABASE = "01_database"
"""The step that comes before all others: it makes the table in which they are written down."""

TRACES = "otel.otel_traces"
"""The table that spans are written to."""

LOGS = "otel.otel_logs"

GAUGES = "otel.otel_metrics_gauge"
SUMS = "otel.otel_metrics_sum"
HISTOGRAMS = "otel.otel_metrics_histogram"
EXPONENTIAL_HISTOGRAMS = "otel.otel_metrics_exponential_histogram"
SUMMARIES = "otel.otel_metrics_summary"


@dataclass(frozen=True, slots=True)
class Signal:
    """What is stored of one kind of telemetry."""

    table: str
    steps: tuple[str, ...]
    views: tuple[str, ...]
    """Over a table of ours; `<name>_exporter` is the same over a table of the exporter's."""
    time: str = "Timestamp"
    """The column that a row's age is counted by."""
    made: tuple[str, ...] = ()
    """Further tables of ours that are filled from it."""

    @property
    def view(self) -> str:
        """What the table is read as: `otel.otel_logs` as `otel.logs`, the spans as `otel.spans`."""
        return view_of(self.table)


def view_of(table: str) -> str:
    """Give the view that a table is read as."""
    return "otel.spans" if table == TRACES else table.replace(".otel_", ".")


MARK = "Precedence"
"""A column that only a table of ours has, not one that the exporter created itself."""

SIGNALS = {
    "traces": Signal(
        table=TRACES,
        steps=("02_traces", "03_trace_executions", "04_domain", "08_sender_traces"),
        views=("05_spans",),
        made=("otel.otel_trace_executions",),
    ),
    "logs": Signal(table=LOGS, steps=("02_logs", "08_sender_logs"), views=("05_logs",)),
    **{
        table.removeprefix("otel.otel_"): Signal(
            table=table, steps=("02_metrics",), views=("05_metrics",), time="TimeUnix"
        )
        for table in (GAUGES, SUMS, HISTOGRAMS, EXPONENTIAL_HISTOGRAMS, SUMMARIES)
    },
}

PEOPLE = ("06_people", "07_named")
"""Views over those of the signals."""

VIEWS = "views"
"""What is written down once the views are made, so that a reader knows whose they are."""

VERSION = f"SELECT max(version) AS version FROM otel.ltrain_migrations WHERE step = '{VIEWS}'"
"""SQL of the number of steps that the program knew which made a store's views; 0 of none."""

COLUMNS = (
    "Timestamp",
    "TraceId",
    "SpanId",
    "ParentSpanId",
    "TraceState",
    "SpanName",
    "SpanKind",
    "ServiceName",
    "ResourceAttributes",
    "ScopeName",
    "ScopeVersion",
    "SpanAttributes",
    "Duration",
    "StatusCode",
    "StatusMessage",
    "Events.Timestamp",
    "Events.Name",
    "Events.Attributes",
    "Links.TraceId",
    "Links.SpanId",
    "Links.TraceState",
    "Links.Attributes",
)
"""The exporter's columns, in the order that `ingest` writes a row; ours are computed on insert."""

LOG_COLUMNS = (
    "Timestamp",
    "TraceId",
    "SpanId",
    "TraceFlags",
    "SeverityText",
    "SeverityNumber",
    "ServiceName",
    "Body",
    "ResourceSchemaUrl",
    "ResourceAttributes",
    "ScopeSchemaUrl",
    "ScopeName",
    "ScopeVersion",
    "ScopeAttributes",
    "LogAttributes",
    "EventName",
)

_POINT = (
    "ResourceAttributes",
    "ResourceSchemaUrl",
    "ScopeName",
    "ScopeVersion",
    "ScopeAttributes",
    "ScopeDroppedAttrCount",
    "ScopeSchemaUrl",
    "ServiceName",
    "MetricName",
    "MetricDescription",
    "MetricUnit",
    "Attributes",
    "StartTimeUnix",
    "TimeUnix",
)

_EXEMPLARS = (
    "Exemplars.FilteredAttributes",
    "Exemplars.TimeUnix",
    "Exemplars.Value",
    "Exemplars.SpanId",
    "Exemplars.TraceId",
)

_SPREAD = ("Flags", "Min", "Max", "AggregationTemporality")

METRIC_COLUMNS = {
    GAUGES: (*_POINT, "Value", "Flags", *_EXEMPLARS),
    SUMS: (*_POINT, "Value", "Flags", *_EXEMPLARS, "AggregationTemporality", "IsMonotonic"),
    HISTOGRAMS: (
        *_POINT,
        "Count",
        "Sum",
        "BucketCounts",
        "ExplicitBounds",
        *_EXEMPLARS,
        *_SPREAD,
    ),
    EXPONENTIAL_HISTOGRAMS: (
        *_POINT,
        "Count",
        "Sum",
        "Scale",
        "ZeroCount",
        "PositiveOffset",
        "PositiveBucketCounts",
        "NegativeOffset",
        "NegativeBucketCounts",
        *_EXEMPLARS,
        *_SPREAD,
    ),
    SUMMARIES: (
        *_POINT,
        "Count",
        "Sum",
        "ValueAtQuantiles.Quantile",
        "ValueAtQuantiles.Value",
        "Flags",
    ),
}

WRITTEN = {TRACES: COLUMNS, LOGS: LOG_COLUMNS, **METRIC_COLUMNS}
"""The columns of each table that OTLP is written to, in the order of its rows."""


def in_order(most: int = 1_000_000) -> str:
    """Give the settings under which a query in the order of a table's key needs little memory.

    Args:
        most: bytes of a block, and of a column of it.
    """
    return (
        f"SETTINGS max_threads = 1, max_block_size = 1024, preferred_block_size_bytes = {most}, "
        f"preferred_max_column_in_block_size_bytes = {most}, read_in_order_use_buffering = 0, "
        "enable_automatic_decision_for_merging_across_partitions_for_final = 0"
    )


KEY = "ORDER BY RunId, RolloutId, Attempt, TraceId, Timestamp, SpanId"

ROLLOUT_ORDER = f"{KEY} {in_order()}"
"""What a query of `otel.spans` ends with that streams whole rollouts one after another: parts are
merged once as they are read, a few blocks of each in memory. A sort, or larger blocks, takes
gigabytes."""

MONTH_ORDER = f"{KEY} {in_order(4_000_000)}"
"""The same for a query of one month, which has few parts: larger blocks cost less CPU a row."""


def into(table: str) -> str:
    """Give what rows are inserted into: the table and its columns."""
    return f"{table} ({', '.join(f'`{name}`' for name in WRITTEN[table])})"


def statements(name: str, **places: str) -> Iterator[str]:
    """Give the statements of one file, each `{place}` filled in."""
    text = files("ltrain_collector").joinpath("ddl", f"{name}.sql").read_text()
    for place, value in places.items():
        text = text.replace(f"{{{place}}}", value)
    for statement in text.split(";\n"):
        if statement.strip():
            yield statement.strip()


def steps() -> tuple[str, ...]:
    """Name all steps, in order."""
    every = (step for signal in SIGNALS.values() for step in signal.steps)
    return (DATABASE, *dict.fromkeys(every))
