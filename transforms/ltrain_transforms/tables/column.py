"""Columns and tables as declarations: name, type and meaning."""

from dataclasses import dataclass

import polars as pl

from ltrain_instrument.errors import UnknownName


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    dtype: pl.DataType
    doc: str
    """One sentence: what a cell says, with its unit."""


@dataclass(frozen=True, slots=True)
class Table:
    name: str
    row: str
    """What one row is."""
    columns: tuple[Column, ...]

    @property
    def schema(self) -> pl.Schema:
        return pl.Schema({column.name: column.dtype for column in self.columns})

    def select(self, frame: pl.LazyFrame) -> pl.LazyFrame:
        """Give `frame` exactly this table's columns, in order and type.

        Raises:
            UnknownName: when the frame lacks one of them.
        """
        there = frame.collect_schema().names()
        for name in self.schema.names():
            if name not in there:
                raise UnknownName(f"column of {self.name}", name, there)
        return frame.select(pl.col(name).cast(dtype) for name, dtype in self.schema.items())

    def empty(self) -> pl.DataFrame:
        return self.schema.to_frame()


STRING, INTEGER, FLOAT, FLAG = pl.String(), pl.Int64(), pl.Float64(), pl.Boolean()
STRINGS, IDS, WEIGHTS = pl.List(pl.String()), pl.List(pl.UInt32()), pl.List(pl.Float32())

EXECUTION = Column("execution_id", STRING, "The execution it belongs to.")
