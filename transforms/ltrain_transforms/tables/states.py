"""Semantic variables."""

import polars as pl

from ltrain_transforms.tables.column import EXECUTION, STRING, Column, Table

STATES = Table(
    "states",
    "One semantic variable written at a step.",
    (
        EXECUTION,
        Column("t", pl.Int32(), "The step: `seq` of the call that wrote it."),
        Column("variable", STRING, "Its name."),
        Column("value", STRING, "Its value, JSON."),
        Column("digest", STRING, "Hash of the value."),
        Column("written_by", STRING, "The call that wrote it."),
    ),
)
