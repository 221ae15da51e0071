"""The digest of a table's rows: a sum, so neither their order nor their files change it.

The SHA-256 of each row covers a JSON object of its plain cells, then the bytes of its long texts
and numeric lists; the first 128 bits are added up. A row that occurs twice counts twice.
"""

from collections.abc import Iterator, Mapping
from hashlib import sha256

import numpy as np
import polars as pl

BITS = 128
TEXTS = frozenset({"input", "output"})
"""Columns of messages, hashed as bytes: a cell has kilobytes, which are slow to encode as JSON."""


def rows_digest(frame: pl.DataFrame) -> int:
    """Return the sum of the digests of all rows, modulo 2**128."""
    long = [n for n, dtype in frame.schema.items() if n in TEXTS or _numeric_list(dtype)]
    lengths = (_lengths(name, frame.schema[name]) for name in long)
    cells = pl.struct(pl.exclude(long), *lengths).struct.json_encode()
    plain = frame.select(cells.alias("text"))["text"].to_list()
    total = 0
    for text, *parts in zip(plain, *(_bytes(frame[name]) for name in long), strict=True):
        row = sha256(text.encode())
        for part in parts:
            row.update(part)
        total += int.from_bytes(row.digest()[: BITS // 8])
    return total % (1 << BITS)


def dataset_id(tables: Mapping[str, int]) -> str:
    """Return the id of a dataset with these table digests: 16 hexadecimal digits."""
    lines = "".join(f"{name} {tables[name]:032x}\n" for name in sorted(tables))
    return sha256(lines.encode()).hexdigest()[:16]


def _numeric_list(dtype: pl.DataType) -> bool:
    while isinstance(dtype, pl.List):
        inner = dtype.inner
        if inner.is_numeric():
            return True
        dtype = inner  # type: ignore[assignment]  # always an instance in a frame's schema
    return False


def _lengths(name: str, dtype: pl.DataType) -> pl.Expr:
    """Return the length of the list and of each inner list, which the bytes do not contain."""
    column = pl.col(name)
    if dtype == pl.String:
        return column.str.len_bytes()
    nested = isinstance(dtype, pl.List) and isinstance(dtype.inner, pl.List)
    return (column.list.eval(pl.element().list.len()) if nested else column.list.len()).alias(name)


def _bytes(cells: pl.Series) -> Iterator[bytes | memoryview]:
    """Yield the bytes of each cell: UTF-8 of a text, little-endian numbers of a list."""
    return _texts(cells) if cells.dtype == pl.String else _numbers(cells)


def _texts(texts: pl.Series) -> Iterator[bytes]:
    return (text or b"" for text in texts.cast(pl.Binary).to_list())


def _numbers(lists: pl.Series) -> Iterator[memoryview]:
    bounds = lists.to_frame().select(
        pl.col(lists.name).list.eval(pl.element().list.len()).list.sum().fill_null(0)
        if isinstance(lists.dtype, pl.List) and isinstance(lists.dtype.inner, pl.List)
        else pl.col(lists.name).list.len().fill_null(0)
    )
    flat = lists
    while isinstance(flat.dtype, pl.List):
        flat = flat.explode(empty_as_null=False, keep_nulls=False)
    numbers = np.ascontiguousarray(flat.to_numpy())
    width, memory = numbers.itemsize, numbers.view(np.uint8).data
    begin = 0
    for length in bounds.to_series().to_list():
        end = begin + length * width
        yield memory[begin:end]
        begin = end
