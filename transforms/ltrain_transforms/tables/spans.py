"""The spans and log records of the store."""

import polars as pl

from ltrain_collector import promoted_columns
from ltrain_transforms.tables.column import EXECUTION, FLAG, INTEGER, STRING, STRINGS, Column, Table

ATTRIBUTES = pl.Map(pl.String(), pl.String())

PROMOTED_TYPES: dict[str, pl.DataType] = {promoted_columns.NUMBER: pl.Int32()}
"""Types of promoted columns that are no text."""

SPANS = Table(
    "spans",
    "One span of the store with its execution; all other tables are made from these.",
    (
        EXECUTION,
        *(
            Column(
                each.snake_name,
                PROMOTED_TYPES.get(each.type, STRING),
                f"{each.doc} Null if no attribute names it.",
            )
            for each in promoted_columns.PROMOTED
            if each.in_transforms
        ),
        Column("session_id", STRING, "The conversation id."),
        Column("trace_id", STRING, "Its trace."),
        Column("span_id", STRING, "Its id."),
        Column(
            "parent_id", STRING, "The span that encloses it, here or in another trace, or null."
        ),
        Column(
            "process",
            STRING,
            "The process that ended it: `service.instance.id`, else host and `process.pid`.",
        ),
        Column("scope", STRING, "The instrumentation that made it."),
        Column("scope_version", STRING, "The version of the instrumentation, or null."),
        Column("sender", STRING, "Who sent it, as the store recorded it, or null."),
        Column("trusted", FLAG, "Whether the recipe trusts that sender."),
        Column(
            "role", STRING, "runner, gateway, learner, person, capture, agent: by scope and sender."
        ),
        Column("name", STRING, "Its name."),
        Column("start", INTEGER, "Start."),
        Column("end", INTEGER, "End."),
        Column("status", STRING, "Unset, Ok or Error."),
        Column("message", STRING, "The status message."),
        Column("outcome", STRING, "On a closing span: how the attempt ended."),
        Column("reported", INTEGER, "On a process's report: the spans it ended for the attempt."),
        Column("attributes", ATTRIBUTES, "Its attributes, as text."),
        Column("events", STRING, "Its events, a JSON list of [name, attributes]."),
        Column("links", STRINGS, "The ids of the spans it links to."),
        Column(
            "logs",
            STRING,
            "Its log records, a JSON list of [name, body, attributes, time, role, whether it was "
            "written in this span, severity, else the spans in which it may have been], or null.",
        ),
        Column(
            "exemplars",
            STRING,
            "Its exemplars of metrics, a JSON list of [name, value, unit, attributes, time, scope, "
            "role], or null.",
        ),
    ),
)


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
        Column("process", STRING, "The process that wrote it, as of a span."),
        Column("resource", STRING, "All attributes that identify its resource, a JSON list."),
        Column("scope", STRING, "The instrumentation that made it."),
        Column("sender", STRING, "Who sent it, as the store recorded it, or null."),
        Column("trusted", FLAG, "Whether the recipe trusts that sender."),
        Column(
            "role", STRING, "runner, gateway, learner, person, capture, agent: by scope and sender."
        ),
        Column("name", STRING, "Its event name."),
        Column("body", STRING, "Its body: text, or JSON."),
        Column("attributes", STRING, "Its attributes, a JSON object of strings."),
        Column("severity", pl.Int32(), "Its severity number; 0 is unknown."),
    ),
)
