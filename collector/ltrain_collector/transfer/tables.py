"""Rows of tables as records: parquet, Arrow and CSV, a few rows in memory.

A folder of Hugging Face's `datasets` has such files and descriptions, which are not records.
"""

import csv
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet

ROWS = 64
"""Rows of a parquet file in memory."""
DESCRIPTIONS = frozenset(
    {"README.md", "dataset_info.json", "dataset_dict.json", "dataset_infos.json", "state.json"}
)
"""Files of a folder of `datasets` without records."""


def _read_parquet(path: Path) -> Iterator[dict[str, Any]]:
    with pyarrow.parquet.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=ROWS):
            yield from _plain(batch.to_pylist())


def _read_arrow(path: Path) -> Iterator[dict[str, Any]]:
    with pa.memory_map(str(path)) as file, pa.ipc.open_stream(file) as batches:
        for batch in batches:
            for start in range(0, batch.num_rows, ROWS):
                yield from _plain(batch.slice(start, ROWS).to_pylist())


def _plain(rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield rows as JSON has them: times are ISO 8601, and absent values are left out."""
    for row in rows:
        present = {name: value for name, value in row.items() if value is not None}
        yield orjson.loads(orjson.dumps(present, default=str))


def _read_csv(path: Path) -> Iterator[dict[str, Any]]:
    csv.field_size_limit(sys.maxsize)
    with path.open(newline="", encoding="utf-8-sig") as file:
        for row in csv.DictReader(file):
            cells = ((name, _cell(text)) for name, text in row.items() if name and text)
            yield {name: value for name, value in cells if value is not None}


def _cell(text: str) -> Any:
    """Return JSON in a cell as its value, and other text as it is."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text


READERS: dict[str, Callable[[Path], Iterator[dict[str, Any]]]] = {
    ".parquet": _read_parquet,
    ".arrow": _read_arrow,
    ".csv": _read_csv,
}
"""The readers by the end of a file's name."""
