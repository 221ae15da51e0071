"""Lists of numbers as one flat array and offsets: views of Arrow's buffers, without Python objects.

Only this module depends on how Polars stores a list column.
"""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

Integers = npt.NDArray[np.int64]
"""Indices, lengths and offsets."""


@dataclass(frozen=True, slots=True)
class Ragged:
    """`n` lists of numbers."""

    values: npt.NDArray[Any]
    """The values of all lists, one list after the other."""
    offsets: Integers
    """Where each list begins in `values`, and where the last ends: n + 1 offsets, from 0."""

    @classmethod
    def from_series(cls, column: pl.Series) -> Self:
        """Return a view of a list column without nulls; a column of one chunk is not copied."""
        arrow = column.rechunk().to_arrow()
        offsets = _to_numpy(arrow.offsets)
        begin, end = (int(offsets[0]), int(offsets[-1])) if len(offsets) else (0, 0)
        return cls(_to_numpy(arrow.values.slice(begin, end - begin)), offsets - begin)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> npt.NDArray[Any]:
        return self.values[self.offsets[index] : self.offsets[index + 1]]

    @property
    def lengths(self) -> Integers:
        return np.diff(self.offsets)

    def to_series(self, dtype: pl.DataType) -> pl.Series:
        """Return a list column; values of that type are not copied."""
        # from buffers: `pa.array` of a sequence imports pandas wherever that is installed
        flat = pl.Series(self.values).to_arrow()
        offsets = pa.py_buffer(np.ascontiguousarray(self.offsets, np.int64))
        arrow = pa.Array.from_buffers(
            pa.large_list(flat.type), len(self), [None, offsets], children=[flat]
        )
        return pl.Series(pl.from_arrow(arrow)).cast(dtype)


def _to_numpy(arrow: Any) -> npt.NDArray[Any]:
    # through Polars: Arrow's own `to_numpy` imports pandas wherever that is installed
    return pl.Series(pl.from_arrow(arrow)).to_numpy()


def lengths_to_offsets(lengths: Integers) -> Integers:
    """Return where each of n consecutive lists begins, and where the last ends: n + 1 offsets."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def concat_lists(lists: Ragged, indices: Integers, skip: Integers | int = 0) -> npt.NDArray[Any]:
    """Concatenate the lists `indices`, each without its first `skip` values."""
    begin = lists.offsets[indices] + skip
    lengths = lists.offsets[indices + 1] - begin
    shift = np.repeat(begin - lengths_to_offsets(lengths)[:-1], lengths)
    return lists.values[shift + np.arange(len(shift))]
