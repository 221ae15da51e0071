"""Declarations of columns and tables."""

from dataclasses import dataclass, fields
from itertools import starmap
from typing import Any, TypeVar

import polars as pl

from ltrain_instrument.errors import UnknownName

Row = TypeVar("Row")


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


def typed_rows(row: type[Row], frame: pl.DataFrame) -> list[Row]:
    """Return the rows of a frame as a dataclass, whose fields are columns of the frame.

    Raises:
        UnknownName: the frame lacks one of them.
    """
    declared: Any = row
    names = [field.name for field in fields(declared)]
    if missing := [name for name in names if name not in frame.columns]:
        raise UnknownName(f"column of {row.__name__}", missing[0], frame.columns)
    return list(starmap(row, frame.select(names).iter_rows()))


STRING, INTEGER, FLOAT, FLAG = pl.String(), pl.Int64(), pl.Float64(), pl.Boolean()
STRINGS, IDS, WEIGHTS = pl.List(pl.String()), pl.List(pl.UInt32()), pl.List(pl.Float32())

EXECUTION = Column("execution_id", STRING, "The execution of the row.")
