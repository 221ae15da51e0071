"""The table `states`: semantic variables."""

import polars as pl

from ltrain_transforms.tables.column import EXECUTION, STRING, Column, Table

STATES = Table(
    "states",
    "One write of a semantic variable.",
    (
        EXECUTION,
        Column(
            "t",
            pl.Int32(),
            "The step from which the value is current: the `seq` of the first call that found it.",
        ),
        Column("variable", STRING, "Its name: see states.md."),
        Column("value", STRING, "Its value, JSON."),
        Column("digest", STRING, "Hash of the value without ids of messages and tool calls."),
        Column("written_by", STRING, "The call that wrote it; null: no traced call."),
    ),
)
