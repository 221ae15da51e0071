"""The result of an export: the rows of one file, their lineage and the drops."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from ltrain_instrument.errors import LtrainError

Line = dict[str, Any]

ROWS = 512
"""Rows of a parquet row group, which is held in memory: 100 MB for rows of 8,000 tokens."""


class BadExport(LtrainError, ValueError):
    """An export that cannot be written."""


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """Options of `ltrain convert`; an export ignores the options of other exports."""

    policy: str | None = None
    """Only the calls of this policy."""
    min: float | None = None
    """The minimum outcome of a rollout."""
    best: int | None = None
    """The number of rollouts of each group, those with the highest outcome."""
    pairs: int = 1
    """The maximum number of preference pairs of a group."""
    tokenizer: Path | None = None
    """A folder with a tokenizer and a chat template."""
    chat_template: str | None = None
    """The text of a chat template that replaces that of the tokenizer."""
    recorded: bool = False
    """Whether a call of `policy` whose tokens a gateway recorded keeps them."""
    max_tokens: int | None = None
    """The maximum number of tokens of a row, beside the recipe's `filter.max_tokens`."""
    license: str | None = None
    """The licence that the card of a folder for a hub names, such as `cc-by-4.0`."""


@dataclass(frozen=True, slots=True)
class JsonLines:
    """Rows of a JSON Lines file, encoded by `encode_line`."""

    rows: Iterator[bytes]

    def write(self, path: Path) -> None:
        with path.open("wb") as file:
            file.writelines(self.rows)


@dataclass(frozen=True, slots=True)
class ParquetRows:
    """Rows of a parquet file, in frames of any size."""

    rows: Iterator[pl.DataFrame]

    def write(self, path: Path) -> None:
        """Write row groups of `ROWS` rows, whatever the sizes of the frames."""
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
    # the oldest level has no string views, which some readers do not support
    return rows.rechunk().to_arrow(compat_level=pl.CompatLevel.oldest())


class ExportedRows(Protocol):
    """The rows of an export, which are written once."""

    def write(self, path: Path) -> None:
        """Write the rows to a file, or to a folder that does not exist yet."""


@dataclass(frozen=True, slots=True)
class ExportResult:
    """The rows of an export, and the drops: together they account for the whole dataset."""

    rows: ExportedRows
    lineage: list[list[str]]
    """For each row the ids of its executions or calls."""
    drops: pl.DataFrame
    """`DROPS`: executions and calls that are in no row, and why."""


def encode_line(row: Line) -> bytes:
    """Encode a row as one line of JSON."""
    text = json.dumps(row, ensure_ascii=False, allow_nan=False)
    # JSON can escape half of a surrogate pair; UTF-8 cannot encode it
    return f"{text}\n".encode(errors="replace")
