"""Lists of numbers as one flat array and offsets: views of Arrow's buffers, without Python objects.

The only module that knows how Polars keeps a list column.
"""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

Whole = npt.NDArray[np.int64]
"""Indices, lengths and offsets."""


@dataclass(frozen=True, slots=True)
class Ragged:
    """`n` lists of numbers."""

    values: npt.NDArray[Any]
    """All of them, one list after the other."""
    offsets: Whole
    """Where each list begins in `values`, and where the last ends: n + 1 of them, from 0."""

    @classmethod
    def of(cls, column: pl.Series) -> Self:
        """Look at a list column without nulls; nothing is copied if it is of one chunk."""
        arrow = column.rechunk().to_arrow()
        offsets = _numbers(arrow.offsets)
        begin, end = (int(offsets[0]), int(offsets[-1])) if len(offsets) else (0, 0)
        return cls(_numbers(arrow.values.slice(begin, end - begin)), offsets - begin)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, place: int) -> npt.NDArray[Any]:
        return self.values[self.offsets[place] : self.offsets[place + 1]]

    @property
    def lengths(self) -> Whole:
        return np.diff(self.offsets)

    def series(self, dtype: pl.DataType) -> pl.Series:
        """Give it as a column; numbers of that type are not copied."""
        # from buffers: `pa.array` of a sequence imports pandas wherever that is installed
        flat = pl.Series(self.values).to_arrow()
        ends = pa.py_buffer(np.ascontiguousarray(self.offsets, np.int64))
        arrow = pa.Array.from_buffers(
            pa.large_list(flat.type), len(self), [None, ends], children=[flat]
        )
        return pl.Series(pl.from_arrow(arrow)).cast(dtype)


def _numbers(arrow: Any) -> npt.NDArray[Any]:
    # through Polars: Arrow's own `to_numpy` imports pandas wherever that is installed
    return pl.Series(pl.from_arrow(arrow)).to_numpy()


def starts(lengths: Whole) -> Whole:
    """Say where each of several stretches begins, and where the last ends: n + 1 offsets."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def rest(lists: Ragged, which: Whole, known: Whole | int = 0) -> npt.NDArray[Any]:
    """Give of the lists `which` what comes after their first `known` values, in one array."""
    begin = lists.offsets[which] + known
    lengths = lists.offsets[which + 1] - begin
    shift = np.repeat(begin - starts(lengths)[:-1], lengths)
    return lists.values[shift + np.arange(len(shift))]
