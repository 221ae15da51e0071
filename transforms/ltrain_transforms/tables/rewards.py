"""The tables `evaluations` and `rewards`."""

from ltrain_transforms.tables.column import EXECUTION, FLOAT, INTEGER, STRING, Column, Table

EVALUATIONS = Table(
    "evaluations",
    "One score of an execution or a call, as a span or log record has it.",
    (
        EXECUTION,
        Column("call_id", STRING, "The evaluated call, or null: the whole execution."),
        Column("name", STRING, "The evaluation's name."),
        Column("source", STRING, "Who wrote it: runner or agent."),
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
        Column("rule", STRING, "The rule or evaluation that it comes from."),
        Column("source", STRING, "Where it comes from: rule, runner, agent or recipe."),
        Column("value", FLOAT, "The value after bounds and weight."),
        Column("evidence", STRING, "The span that it was computed from."),
    ),
)
