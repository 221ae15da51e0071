"""Semantic variables."""

import polars as pl

from ltrain_transforms.tables.column import EXECUTION, STRING, Column, Table

STATES = Table(
    "states",
    "One semantic variable written at a step.",
    (
        EXECUTION,
        Column(
            "t",
            pl.Int32(),
            "The step from which on it holds: the first call, by `seq`, that found it.",
        ),
        Column("variable", STRING, "Its name: see states.md."),
        Column("value", STRING, "Its value, JSON."),
        Column("digest", STRING, "Hash of the value without ids of messages and tool calls."),
        Column("written_by", STRING, "The call that wrote it; null: nobody that was traced."),
    ),
)
