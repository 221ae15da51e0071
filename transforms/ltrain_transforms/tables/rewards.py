"""The tables `evaluations` and `rewards`, and the columns that the SQL of rules may read."""

import polars as pl

from ltrain_transforms.tables.calls import CALLS
from ltrain_transforms.tables.column import EXECUTION, FLAG, FLOAT, INTEGER, STRING, Column, Table
from ltrain_transforms.tables.executions import EXECUTION_CONTENTS, EXECUTIONS

EVALUATIONS = Table(
    "evaluations",
    "One score of an execution or a call, as a span or log record has it.",
    (
        EXECUTION,
        Column("call_id", STRING, "The evaluated call, or null: the whole execution."),
        Column("name", STRING, "The evaluation's name."),
        Column("source", STRING, "Who wrote it: runner, person or agent."),
        Column("value", FLOAT, "The score."),
        Column("evidence", STRING, "The span that carries it."),
        Column("start", INTEGER, "When it was written."),
        Column("fault", STRING, "Why it does not count, or null."),
    ),
)


REWARDS = Table(
    "rewards",
    "One contribution to a call, or to the whole execution where call_id is null.",
    (
        EXECUTION,
        Column("call_id", STRING, "The credited call, or null: the whole execution."),
        Column("rule", STRING, "The rule or evaluation that gave it."),
        Column("source", STRING, "Where it comes from: rule, runner, person, agent or recipe."),
        Column("value", FLOAT, "The value after bounds and weight."),
        Column("evidence", STRING, "The span that is its evidence."),
    ),
)


EXEMPLAR = "exemplar"
"""The value of `record` of an exemplar."""

SIGNALS = Table(
    "signals",
    "One span, event of a span, log record or exemplar of an agent that is not a call, and its "
    "call.",
    (
        EXECUTION,
        Column("call_id", STRING, "The nearest call that encloses it, or null."),
        Column("kind", STRING, "The kind of that call."),
        Column("call_name", STRING, "The name of that call: of a tool, its own."),
        Column("call_status", STRING, "The status of that call: ok or error."),
        Column("record", STRING, "Where it is: span, event, log or exemplar."),
        Column(
            "name",
            STRING,
            "The name of the span, the event or the metric; of a log record its event.",
        ),
        Column("scope", STRING, "The instrumentation that made the span, or the exemplar."),
        Column("failed", FLAG, "Whether the span has an error status; null for a log record."),
        Column("message", STRING, "Status message, exception's message, or the record's body."),
        Column("severity", pl.Int32(), "Severity number of a log record: 13 is WARN, 17 ERROR."),
        Column("seconds", FLOAT, "Duration of a span, in seconds."),
        Column("value", FLOAT, "Value of an exemplar."),
        Column("unit", STRING, "Unit of an exemplar's metric."),
        Column("error_type", STRING, "`error.type`, or `exception.type`."),
        Column("http_status", pl.Int32(), "`http.response.status_code`."),
        Column("grpc_status", pl.Int32(), "`rpc.grpc.status_code`; 0 is OK."),
        Column("db_status", STRING, "`db.response.status_code`."),
        Column("exit_code", pl.Int32(), "`process.exit.code`."),
        Column("attributes", STRING, "Its attributes, a JSON object of strings."),
        Column("evidence", STRING, "The span that it is, or is in."),
    ),
)


DERIVED_COLUMNS = Table(
    "derived",
    "One call; each column is computed only if a rule uses it.",
    (
        Column("answer", STRING, "The text of an LLM call, without tool requests; else null."),
        Column("final", FLAG, "Whether it is the execution's last LLM call with an answer."),
        Column("seconds", FLOAT, "Duration of the call, in seconds; null where it is unknown."),
        Column("depth", pl.Int32(), "Number of enclosing agents that call a model."),
        Column("script_mix", FLOAT, "Share of the answer's letters outside its main script."),
        Column("foreign_script", FLOAT, "Share of its letters in scripts that the input lacks."),
        Column("unknown_tools", pl.Int32(), "Requests for tools that the prompt did not define."),
        Column("invalid_requests", pl.Int32(), "Tool requests that violate the tool's schema."),
        Column("used", FLAG, "A later LLM call repeats what is new in the tool's result; null "
               "where nothing is new or no call is later."),
        Column("fits", FLAG, "The answer or result is JSON that matches the rule's `schema`."),
    ),
)  # fmt: skip

GROUP_STATS = Table(
    "standing",
    "One execution and its group: its members that are not superseded and ended by themselves.",
    (
        EXECUTION,
        Column(
            "reward", FLOAT, "Its outcome reward before gates and rules over the rollout, or null."
        ),
        Column("group_size", pl.Int32(), "Number of executions in its group."),
        Column("group_reward", FLOAT, "Mean reward of the group."),
        Column("group_wall", FLOAT, "Median of `wall` in the group, seconds."),
        Column("group_critical_path", FLOAT, "Median of `critical_path` in the group, seconds."),
    ),
)

RULE_COLUMNS = pl.Schema({**CALLS.schema, **DERIVED_COLUMNS.schema})
"""Columns that the SQL of a rule over calls may read."""

GATE_COLUMNS = pl.Schema(
    {
        name: dtype
        for name, dtype in {**EXECUTIONS.schema, **GROUP_STATS.schema}.items()
        if name not in EXECUTION_CONTENTS
    }
)
"""Columns that a gate, and the SQL of a rule over executions, may read."""
