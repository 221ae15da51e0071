"""The log records of the store."""

from ltrain_transforms.tables.column import EXECUTION, FLAG, INTEGER, STRING, Column, Table

LOGS = Table(
    "logs",
    "One log record of the store; those that carry messages are joined to the span they name.",
    (
        EXECUTION,
        Column("rollout_id", STRING, "The rollout that the record itself names, or null."),
        Column("attempt", STRING, "The attempt that the record itself names, or null."),
        Column("trace_id", STRING, "The trace it was written in, or null."),
        Column("span_id", STRING, "The span it was written in, or null."),
        Column("time", INTEGER, "When it was written, else when it was observed."),
        Column("scope", STRING, "The instrumentation that made it."),
        Column("sender", STRING, "Who sent it, as the store recorded it, or null."),
        Column("trusted", FLAG, "Whether the recipe trusts that sender."),
        Column("role", STRING, "runner, gateway, learner, capture or agent: by scope and sender."),
        Column("name", STRING, "Its event name."),
        Column("body", STRING, "Its body: text, or JSON."),
        Column("attributes", STRING, "Its attributes, a JSON object of strings."),
    ),
)
