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


@dataclass(frozen=True, slots=True)
class Signal:
    """What is stored of one kind of telemetry."""

    table: str
    mark: str
    """A column that only a table of ours has, not one that the exporter created itself."""
    steps: tuple[str, ...]
    views: tuple[str, ...]
    """Over a table of ours."""
    views_exporter: tuple[str, ...]
    """The same over a table of the exporter's, whose name stands for `{traces}`."""
    time: str = "Timestamp"
    """The column that a row's age is counted by."""
    made: tuple[str, ...] = ()
    """Further tables of ours that are filled from it."""


SIGNALS = {
    "traces": Signal(
        table=TRACES,
        mark="Precedence",
        steps=("02_traces", "03_trace_executions", "04_domain"),
        views=("05_spans",),
        views_exporter=("05_spans_exporter",),
        made=("otel.otel_trace_executions",),
    ),
}

PEOPLE = ("06_people", "07_named")
"""Views over those of the signals."""

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

ROLLOUT_ORDER = (
    "ORDER BY RunId, RolloutId, Attempt, TraceId, Timestamp, SpanId "
    "SETTINGS max_threads = 1, max_block_size = 1024, preferred_block_size_bytes = 1000000, "
    "preferred_max_column_in_block_size_bytes = 1000000, read_in_order_use_buffering = 0, "
    "enable_automatic_decision_for_merging_across_partitions_for_final = 0"
)
"""What a query of `otel.spans` ends with that streams whole rollouts one after another: parts are
merged once as they are read, a few blocks of each in memory. A sort, or larger blocks, takes
gigabytes."""


def statements(name: str, traces: str = TRACES) -> Iterator[str]:
    """Give the statements of one file, `{traces}` filled in."""
    text = files("ltrain_collector").joinpath("ddl", f"{name}.sql").read_text()
    for statement in text.replace("{traces}", traces).split(";\n"):
        if statement.strip():
            yield statement.strip()


def steps() -> tuple[str, ...]:
    """Name all steps, in order."""
    return (DATABASE, *(step for signal in SIGNALS.values() for step in signal.steps))
