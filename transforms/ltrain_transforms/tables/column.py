"""Declarations of columns and tables."""

from dataclasses import dataclass

import polars as pl

from ltrain_instrument.errors import UnknownName


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table."""

    name: str
    dtype: pl.DataType
    doc: str
    """One sentence: the meaning of a cell, with its unit."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table and its columns."""

    name: str
    row: str
    """The meaning of one row."""
    columns: tuple[Column, ...]

    @property
    def schema(self) -> pl.Schema:
        return pl.Schema({column.name: column.dtype for column in self.columns})

    def select(self, frame: pl.LazyFrame) -> pl.LazyFrame:
        """Return exactly this table's columns of `frame`, in order and type.

        Raises:
            UnknownName: the frame lacks one of them.
        """
        names = frame.collect_schema().names()
        for name in self.schema.names():
            if name not in names:
                raise UnknownName(f"column of {self.name}", name, names)
        return frame.select(pl.col(name).cast(dtype) for name, dtype in self.schema.items())

    def empty(self) -> pl.DataFrame:
        return self.schema.to_frame()


STRING, INTEGER, FLOAT, FLAG = pl.String(), pl.Int64(), pl.Float64(), pl.Boolean()
STRINGS, IDS, WEIGHTS = pl.List(pl.String()), pl.List(pl.UInt32()), pl.List(pl.Float32())

EXECUTION = Column("execution_id", STRING, "The execution of the row.")
