"""Log records that say what spans do not."""

from ltrain_transforms.tables.column import EXECUTION, INTEGER, STRING, Column, Table

LOGS = Table(
    "logs",
    "One log record of the store, resolved to its execution.",
    (
        EXECUTION,
        Column("trace_id", STRING, "The trace that it was written in, or null."),
        Column("span_id", STRING, "The span that it was written in, or null."),
        Column("scope", STRING, "The instrumentation that made it."),
        Column("name", STRING, "The event's name."),
        Column("time", INTEGER, "When it was written."),
        Column("attributes", STRING, "Its attributes, a JSON object of strings."),
    ),
)
