"""ltrain's tables and views: the SQL files of `ddl/`, and which of them a store needs.

A step is a file of statements that can run any number of times: each has `IF NOT EXISTS`. New steps
go to the end of their signal's list; a later step changes a table, never the step that created it.
The steps that change promoted columns are made from their list.
Every migration creates the views again.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files

from ltrain_collector.store import promoted_columns

DATABASE = "01_database"
"""The first step: it creates the database and the table that records the steps."""

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
    """The table, views and migration steps of one kind of telemetry."""

    table: str
    steps: tuple[str, ...]
    views: tuple[str, ...]
    """Files of views over ltrain's own table; `<name>_exporter` reads a table of the exporter."""
    time: str = "Timestamp"
    """The column that gives the age of a row."""
    derived_tables: tuple[str, ...] = ()
    """Tables that ClickHouse fills from this one."""

    @property
    def view(self) -> str:
        """The view over the table: `otel.logs` over `otel.otel_logs`, `otel.spans` over spans."""
        return view_name(self.table)


def view_name(table: str) -> str:
    """Return the name of the view over a table."""
    return "otel.spans" if table == TRACES else table.replace(".otel_", ".")


OWN_COLUMN = "Precedence"
"""A column that ltrain's tables have and tables created by the exporter do not."""

SIGNALS = {
    "traces": Signal(
        table=TRACES,
        steps=(
            *("02_traces", "03_trace_executions", "04_domain", "08_sender_traces"),
            *promoted_columns.step_names("traces"),
        ),
        views=("05_spans",),
        derived_tables=("otel.otel_trace_executions",),
    ),
    "logs": Signal(
        table=LOGS,
        steps=("02_logs", "08_sender_logs", *promoted_columns.step_names("logs")),
        views=("05_logs",),
    ),
    **{
        table.removeprefix("otel.otel_"): Signal(
            table=table, steps=("02_metrics",), views=("05_metrics",), time="TimeUnix"
        )
        for table in (GAUGES, SUMS, HISTOGRAMS, EXPONENTIAL_HISTOGRAMS, SUMMARIES)
    },
}

USER_VIEWS = ("06_user_views", "07_report_views")
"""The views for users, made from those of the signals."""

RENAMED_VIEWS = "09_renamed_views"
"""The step that drops the views that have another name now, whoever owns the tables."""

VIEWS = "views"
"""The step recorded after the views are created; its version tells which ltrain created them."""

VERSION = f"SELECT max(version) AS version FROM otel.ltrain_migrations WHERE step = '{VIEWS}'"
"""SQL that reads how many steps the ltrain knew that created the store's views; 0: no views."""

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
"""The exporter's columns, in the order `ingest` writes; ClickHouse computes ltrain's on insert."""

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

_POINT_COLUMNS = (
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

_EXEMPLAR_COLUMNS = (
    "Exemplars.FilteredAttributes",
    "Exemplars.TimeUnix",
    "Exemplars.Value",
    "Exemplars.SpanId",
    "Exemplars.TraceId",
)

_HISTOGRAM_SUFFIX = ("Flags", "Min", "Max", "AggregationTemporality")

METRIC_COLUMNS = {
    GAUGES: (*_POINT_COLUMNS, "Value", "Flags", *_EXEMPLAR_COLUMNS),
    SUMS: (
        *_POINT_COLUMNS,
        "Value",
        "Flags",
        *_EXEMPLAR_COLUMNS,
        "AggregationTemporality",
        "IsMonotonic",
    ),
    HISTOGRAMS: (
        *_POINT_COLUMNS,
        "Count",
        "Sum",
        "BucketCounts",
        "ExplicitBounds",
        *_EXEMPLAR_COLUMNS,
        *_HISTOGRAM_SUFFIX,
    ),
    EXPONENTIAL_HISTOGRAMS: (
        *_POINT_COLUMNS,
        "Count",
        "Sum",
        "Scale",
        "ZeroCount",
        "PositiveOffset",
        "PositiveBucketCounts",
        "NegativeOffset",
        "NegativeBucketCounts",
        *_EXEMPLAR_COLUMNS,
        *_HISTOGRAM_SUFFIX,
    ),
    SUMMARIES: (
        *_POINT_COLUMNS,
        "Count",
        "Sum",
        "ValueAtQuantiles.Quantile",
        "ValueAtQuantiles.Value",
        "Flags",
    ),
}

INSERT_COLUMNS = {TRACES: COLUMNS, LOGS: LOG_COLUMNS, **METRIC_COLUMNS}
"""The columns that ingest writes to each table, in the order of its RowBinary rows."""


def ordered_read_settings(max_bytes: int = 1_000_000) -> str:
    """Return settings that read a table in the order of its key with little memory.

    Args:
        max_bytes: size of a block, and of one column of a block.
    """
    return (
        "SETTINGS max_threads = 1, max_block_size = 1024, "
        f"preferred_block_size_bytes = {max_bytes}, "
        f"preferred_max_column_in_block_size_bytes = {max_bytes}, read_in_order_use_buffering = 0, "
        "enable_automatic_decision_for_merging_across_partitions_for_final = 0"
    )


KEY = "ORDER BY RunId, RolloutId, Attempt, TraceId, Timestamp, SpanId"

ROLLOUT_ORDER = f"{KEY} {ordered_read_settings()}"
"""The end of a query of `otel.spans` that streams one rollout after another: ClickHouse merges the
parts while it reads them, with a few blocks of each in memory. A sort or larger blocks would take
gigabytes."""

MONTH_ORDER = f"{KEY} {ordered_read_settings(4_000_000)}"
"""The same for one month, which has few parts: larger blocks need less CPU per row."""


def insert_target(table: str) -> str:
    """Return what follows `INSERT INTO`: the table and its columns."""
    return f"{table} ({', '.join(f'`{name}`' for name in INSERT_COLUMNS[table])})"


def read_statements(name: str, **placeholders: str) -> Iterator[str]:
    """Yield the statements of a step or view: of the file `name`, or of promoted columns.

    Each `{placeholder}` of a file is replaced by its value.
    """
    if changes := list(promoted_columns.step_statements(name)):
        yield from changes
        return
    text = files("ltrain_collector.store").joinpath("ddl", f"{name}.sql").read_text()
    for placeholder, value in (promoted_columns.PLACEHOLDERS | placeholders).items():
        text = text.replace(f"{{{placeholder}}}", value)
    for statement in text.split(";\n"):
        if statement.strip():
            yield statement.strip()


def steps() -> tuple[str, ...]:
    """Return the names of all steps, in order."""
    signal_steps = (step for signal in SIGNALS.values() for step in signal.steps)
    return (DATABASE, *dict.fromkeys(signal_steps), RENAMED_VIEWS)
