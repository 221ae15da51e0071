"""`ltrain sql`: the result of a query as a table for people or as bytes for programs."""

import json
import os
import sys
from codecs import getincrementaldecoder
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import BinaryIO

import polars as pl
from rich.console import Console
from rich.table import Table

from ltrain_collector.errors import BadFormat, BadParameter
from ltrain_collector.parameters import Parameters
from ltrain_collector.store import Store
from ltrain_instrument.terminal import visible

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

COUNTED = 1_000_000
"""Rows after which a table no longer counts what it leaves out."""

CELL = 1000
"""Characters of a table's cell; a prompt may have a million."""

GROUP = 32 << 20
"""Bytes in memory of a parquet file's row group."""

SCREEN = 16 << 20
"""Bytes that go to a terminal, where nobody reads more."""


def write(
    sql: str, dsn: str | None, form: str, out: Path | None, params: Parameters | None = None
) -> None:
    """Run `sql` and write what it gives to `out`, else to standard output.

    Raises:
        QueryFailed: when ClickHouse refuses it.
        BadFormat: when the format is not a terminal's to show.
    """
    with Store.open(dsn, create=False) as store:
        if form == "table":
            with out.open("w") if out else nullcontext(sys.stdout) as text:
                # markup of a trace is text, too
                show(store.stream(sql, params), Console(file=text, markup=False, emoji=False))
            return
        screen = out is None and sys.stdout.isatty()
        if form.lower() in BINARY and screen:
            raise BadFormat(f"Format '{form}' is not for a terminal; write it with --out FILE.")
        target = out.open("wb") if out else nullcontext(sys.stdout.buffer)
        with target as file:
            if form == "parquet":
                _parquet(store, sql, params, file)
                return
            parts = store.export(sql, FORMATS.get(form, form), params)
            parts = _array(parts) if form == "json" else parts
            parts = _shown(parts) if screen else parts
            _copy(parts, file, SCREEN if screen else None)


def parameters(given: list[str]) -> dict[str, str]:
    """Read `name=value` pairs.

    Raises:
        BadParameter: when one is none.
    """
    pairs = [each.partition("=") for each in given]
    if wrong := [name for name, equals, _ in pairs if not (equals and name.isidentifier())]:
        raise BadParameter(
            f"--param {wrong[0]} is not name=value; e.g. --param run=demo for {{run:String}} in "
            "the query."
        )
    return {name: value for name, _, value in pairs}


@contextmanager
def quietly() -> Iterator[None]:
    """End in silence when the reader of a pipe, `| head`, has seen enough."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes standard output once more as it ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _array(lines: Iterator[bytes]) -> Iterator[bytes]:
    """Make one JSON array of JSON lines; a line break inside a value is escaped."""
    before, rest = b"[\n", b""
    for part in lines:
        *whole, rest = (rest + part).split(b"\n")
        if whole:
            yield before + b",\n".join(whole)
            before = b",\n"
    yield b"\n]\n" if before == b",\n" else b"[]\n"


def _shown(parts: Iterator[bytes]) -> Iterator[bytes]:
    """Make what goes to a terminal safe; a character may lie in two parts."""
    decoder = getincrementaldecoder("utf-8")("backslashreplace")
    for part in parts:
        yield visible(decoder.decode(part)).encode()
    yield visible(decoder.decode(b"", final=True)).encode()


def _copy(parts: Iterator[bytes], file: BinaryIO, limit: int | None) -> None:
    left = limit
    for part in parts:
        file.write(part if left is None else part[:left])
        left = None if left is None else left - len(part)
        if left is not None and left <= 0:
            file.flush()
            told = f"\nThe first {SCREEN >> 20} MiB; all of it with --out FILE or in a pipe."
            print(told, file=sys.stderr)
            return
    file.flush()


def _parquet(store: Store, sql: str, params: Parameters | None, file: BinaryIO) -> None:
    """Write row groups as frames come: ClickHouse's own writer is asked for the whole at once."""
    from pyarrow.parquet import ParquetWriter

    frames = store.frames(sql, params)
    empty = next(frames).to_arrow()
    with ParquetWriter(file, empty.schema, compression="zstd") as writer:
        few: list[pl.DataFrame] = []
        for frame in frames:
            few.append(frame)
            if sum(each.estimated_size() for each in few) > GROUP:
                writer.write_table(pl.concat(few).to_arrow())
                few = []
        if few:
            writer.write_table(pl.concat(few).to_arrow())


def show(frames: Iterator[pl.DataFrame], console: Console) -> None:
    """Print the first rows as a table, and how many there are."""
    table: Table | None = None
    rows = total = cut = 0
    shown = visible if console.is_terminal else str
    for frame in frames:
        table = table or Table(*map(shown, frame.columns), show_header=True)
        for row in frame.head(max(ROWS - rows, 0)).iter_rows():
            cells = [shown(_cell(value)) for value in row]
            cut += sum(len(cell) > CELL for cell in cells)
            table.add_row(*(cell if len(cell) <= CELL else f"{cell[:CELL]}…" for cell in cells))
            rows += 1
        total += frame.height
        if total > COUNTED:
            break
    if table is None:
        console.print("No rows.")
        return
    console.print(table)
    if total > rows:
        of = f"more than {COUNTED}" if total > COUNTED else total
        console.print(f"{rows} of {of} rows; all of them with --format csv or --out.")
    if cut:
        console.print(f"{cut} long cells are cut at {CELL} characters; not so in other formats.")


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
