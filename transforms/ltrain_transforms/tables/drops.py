"""The table `drops`: what was left out, and why."""

from ltrain_transforms.tables.column import STRING, Column, Table

DROPS = Table(
    "drops",
    "One thing that was left out, with the reason.",
    (
        Column(
            "stage",
            STRING,
            "spans, calls, states, executions, rewards, groups or rows; of a conversion, exports.",
        ),
        Column(
            "id",
            STRING,
            "What was dropped; for an attribute of a call `span:attribute`, for an invalid span "
            "`span:execution`.",
        ),
        Column("reason", STRING, "The name of the reason."),
        Column("detail", STRING, "The reason as a sentence."),
    ),
)
