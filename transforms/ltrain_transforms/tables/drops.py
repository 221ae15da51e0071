"""What was left out."""

from ltrain_transforms.tables.column import STRING, Column, Table

DROPS = Table(
    "drops",
    "One thing left out, with the reason.",
    (
        Column(
            "stage",
            STRING,
            "spans, calls, states, executions, rewards, groups or rows; of a conversion, exports.",
        ),
        Column(
            "id",
            STRING,
            "What was dropped: `span:attribute` of a call, `span:execution` of a broken span.",
        ),
        Column("reason", STRING, "A name from the docs."),
        Column("detail", STRING, "A sentence for a person."),
    ),
)
