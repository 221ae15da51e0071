"""Our tables and views: the SQL files of `ddl/`, and which of them a store needs."""

from collections.abc import Iterator
from importlib.resources import files

TRACES = "otel.otel_traces"
"""The table that spans are written to."""

OURS = ("01_database", "02_traces", "03_trace_executions")
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
"""The exporter's columns, in the order that `otlp` writes a row; ours are computed on insert."""

COLUMN_LIST = ", ".join(f"`{name}`" for name in COLUMNS)


def statements(name: str, traces: str = TRACES) -> Iterator[str]:
    """Give the statements of one file, `{traces}` filled in."""
    text = files("ltrain_collector").joinpath("ddl", f"{name}.sql").read_text()
    for statement in text.replace("{traces}", traces).split(";\n"):
        if statement.strip():
            yield statement.strip()


def tables() -> Iterator[str]:
    """Give the statements that make our own tables, where they are missing."""
    for name in OURS:
        yield from statements(name)


def views(traces: str, ours: bool) -> Iterator[str]:
    """Give the statements that make the views over `traces`; `ours`: it has our columns."""
    yield from statements("05_spans" if ours else "05_spans_exporter", traces)
    yield from statements("06_people")
