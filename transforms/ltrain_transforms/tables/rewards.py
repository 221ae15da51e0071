"""What executions and calls are worth."""

from ltrain_transforms.tables.column import EXECUTION, FLOAT, INTEGER, STRING, Column, Table

EVALUATIONS = Table(
    "evaluations",
    "What someone said an execution or a call is worth; rewards are made from it.",
    (
        EXECUTION,
        Column("call_id", STRING, "The call that is judged, or null: the whole execution."),
        Column("name", STRING, "The evaluation's name."),
        Column("source", STRING, "Whose word it is: runner or agent."),
        Column("value", FLOAT, "The score."),
        Column("evidence", STRING, "The span that says so."),
        Column("start", INTEGER, "When it was said."),
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
        Column("source", STRING, "Whose word it is: rule, runner, agent or recipe."),
        Column("value", FLOAT, "How much, after bounds and weight."),
        Column("evidence", STRING, "The span that made it so."),
    ),
)
