"""Our tables and views: the SQL files of `ddl/`, and which of them a store needs."""

from collections.abc import Iterator
from importlib.resources import files

TRACES = "otel.otel_traces"
"""The table that spans are written to."""

LOGS = "otel.otel_logs"

GAUGES = "otel.otel_metrics_gauge"
SUMS = "otel.otel_metrics_sum"
HISTOGRAMS = "otel.otel_metrics_histogram"
EXPONENTIAL_HISTOGRAMS = "otel.otel_metrics_exponential_histogram"
SUMMARIES = "otel.otel_metrics_summary"

OURS = ("01_database", "02_traces", "02_logs", "02_metrics", "03_trace_executions")
"""What a store has where we own its tables."""

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


def tables() -> Iterator[str]:
    """Give the statements that make our own tables, where they are missing."""
    for name in OURS:
        yield from statements(name)


def views(traces: str, ours: bool) -> Iterator[str]:
    """Give the statements that make the views over `traces`; `ours`: it has our columns."""
    yield from statements("05_spans" if ours else "05_spans_exporter", traces=traces)
    yield from statements("06_people")


def signal_view(table: str, ours: bool) -> Iterator[str]:
    """Give the statements that make the view over a table of logs or metrics.

    `otel.otel_logs` is read as `otel.logs`, `otel.otel_metrics_sum` as `otel.metrics_sum`.
    """
    view = f"otel.{table.rpartition('.otel_')[2]}"
    kind = "05_logs" if view == "otel.logs" else "05_metrics"
    yield from statements(kind if ours else f"{kind}_exporter", table=table, view=view)
