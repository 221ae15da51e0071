"""`ltrain sql`: the result of a query as a table for people or as bytes for programs."""

import json
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import BinaryIO

import polars as pl
from rich.console import Console
from rich.table import Table

from ltrain_collector.errors import BadFormat
from ltrain_collector.store import Store

FORMATS = {
    "json": "JSONEachRow",
    "jsonl": "JSONEachRow",
    "csv": "CSVWithNames",
    "tsv": "TSVWithNames",
    "parquet": "Parquet",
    "arrow": "Arrow",
    "markdown": "Markdown",
}
"""Our short names of ClickHouse's formats; the rows of `json` are put into one array."""

BINARY = ("parquet", "arrow", "native", "orc", "avro")

ROWS = 1000
"""A table on a terminal stops here and says so."""


def write(sql: str, dsn: str | None, form: str, out: Path | None) -> None:
    """Run `sql` and write what it gives to `out`, else to standard output.

    Raises:
        QueryFailed: when ClickHouse refuses it.
        BadFormat: when the format is not a terminal's to show.
    """
    with Store.open(dsn, create=False) as store:
        if form == "table":
            with out.open("w") if out else nullcontext(sys.stdout) as text:
                show(store.stream(sql), Console(file=text))
            return
        if form.lower() in BINARY and out is None and sys.stdout.isatty():
            raise BadFormat(f"Format '{form}' is not for a terminal; write it with --out FILE.")
        parts = store.export(sql, FORMATS.get(form, form))
        parts = _array(parts) if form == "json" else parts
        target = out.open("wb") if out else nullcontext(sys.stdout.buffer)
        with target as file:
            _copy(parts, file)


def _array(lines: Iterator[bytes]) -> Iterator[bytes]:
    """Make one JSON array of JSON lines; a line break inside a value is escaped."""
    before, rest = b"[\n", b""
    for part in lines:
        *whole, rest = (rest + part).split(b"\n")
        if whole:
            yield before + b",\n".join(whole)
            before = b",\n"
    yield b"\n]\n" if before == b",\n" else b"[]\n"


def _copy(parts: Iterator[bytes], file: BinaryIO) -> None:
    for part in parts:
        file.write(part)
    file.flush()


def show(frames: Iterator[pl.DataFrame], console: Console) -> None:
    """Print the first rows as a table, and how many there are."""
    table: Table | None = None
    shown = total = 0
    for frame in frames:
        table = table or Table(*frame.columns, show_header=True)
        for row in frame.head(max(ROWS - shown, 0)).iter_rows():
            table.add_row(*(_cell(value) for value in row))
            shown += 1
        total += frame.height
    if table is None:
        console.print("No rows.")
        return
    console.print(table)
    if total > shown:
        console.print(f"{shown} of {total} rows; all of them with --format csv or --out.")


def told_as(told: dict[str, object], as_json: bool) -> str:
    """Give what a command found as JSON, or as lines for people."""
    if as_json:
        return json.dumps(told, indent=2, ensure_ascii=False)
    return "\n".join(_lines(told, ""))


def _lines(told: dict[str, object], indent: str) -> Iterator[str]:
    for name, value in told.items():
        label = name.replace("_", " ")
        if isinstance(value, dict):
            yield f"{indent}{label}:"
            yield from _lines(value, indent + "  ")
        elif isinstance(value, list):
            yield f"{indent}{label}:"
            for each in value:
                row = each.items() if isinstance(each, dict) else [("", each)]
                yield f"{indent}  " + ", ".join(f"{key} {text}".strip() for key, text in row)
        else:
            yield f"{indent}{label}: {value}"


def _cell(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else "" if value is None else str(value)
