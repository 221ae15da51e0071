"""What a conversion gives: rows for one file, and what its manifest says of them."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from ltrain_instrument.errors import LtrainError

Line = dict[str, Any]

ROWS = 512
"""Of a parquet file's row group, which is in memory at once: 100 MB of 8,000 tokens each."""


class BadExport(LtrainError, ValueError):
    """A conversion that cannot be written; says what was asked and what mends it."""


@dataclass(frozen=True, slots=True)
class Options:
    """What a user may ask of a conversion; each reads those that concern it."""

    policy: str | None = None
    """Only this policy's calls."""
    at_least: float | None = None
    """The least outcome of a rollout that is taken."""
    best: int | None = None
    """Take this many of each group, those with the greatest outcome."""
    pairs: int = 1
    """The most preference pairs of a group."""
    tokenizer: Path | None = None
    """A folder with a tokenizer and its chat template."""


@dataclass(frozen=True, slots=True)
class Lines:
    """Rows of JSON lines, as `line` gives them."""

    rows: Iterator[bytes]

    def write(self, path: Path) -> None:
        """Write them one after the other."""
        with path.open("wb") as file:
            file.writelines(self.rows)


@dataclass(frozen=True, slots=True)
class Frames:
    """Rows of a parquet file, some at a time."""

    rows: Iterator[pl.DataFrame]

    def write(self, path: Path) -> None:
        """Write a row group of every `ROWS`, whatever the frames' sizes."""
        first = next(self.rows)
        waiting = first.clear()
        with pq.ParquetWriter(path, _arrow(waiting).schema, compression="zstd") as writer:
            for more in chain([first], self.rows):
                waiting = pl.concat([waiting, more])
                while waiting.height >= ROWS:
                    writer.write_table(_arrow(waiting.head(ROWS)))
                    waiting = waiting.slice(ROWS)
            if not waiting.is_empty():
                writer.write_table(_arrow(waiting))


def _arrow(rows: pl.DataFrame) -> pa.Table:
    return rows.rechunk().to_arrow(compat_level=pl.CompatLevel.oldest())  # no views: all read it


@dataclass(frozen=True, slots=True)
class Converted:
    """Rows, and where everything that was looked at went."""

    rows: Lines | Frames
    lineage: list[list[str]]
    """Of each row the ids it was made from: executions, or calls."""
    drops: pl.DataFrame
    """`DROPS`: what is in no row, and why."""


def line(row: Line) -> bytes:
    """Give a row as JSON."""
    text = json.dumps(row, ensure_ascii=False, allow_nan=False)
    # half of a surrogate pair, which JSON can escape, has no UTF-8
    return f"{text}\n".encode(errors="replace")
