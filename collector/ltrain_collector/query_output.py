"""`ltrain sql`: write the result of a query as a table for people or in a format for programs."""

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
from rich.text import Text

from ltrain_collector.errors import BadFormat, BadParameter
from ltrain_collector.store import Parameters, Store
from ltrain_instrument.machine import visible
from ltrain_instrument.quantity import quantity

FORMATS = {
    "json": "JSONEachRow",
    "jsonl": "JSONEachRow",
    "csv": "CSVWithNames",
    "tsv": "TSVWithNames",
    "parquet": "Parquet",
    "arrow": "Arrow",
    "markdown": "Markdown",
}
"""Short names of ClickHouse's formats; `json` writes the rows as one array."""

BINARY_FORMATS = ("parquet", "arrow", "native", "orc", "avro")

MAX_TABLE_ROWS = 1000
"""Rows after which a table ends, with a note."""

MAX_COUNTED_ROWS = 1_000_000
"""Rows after which a table stops counting the rows that it leaves out."""

MAX_CELL_CHARACTERS = 1000
"""Characters after which a cell of a table is cut; a prompt can have a million."""

MAX_WIDTH = 1 << 20
"""More characters than the widest table has."""

ROW_GROUP_BYTES = 32 << 20
"""Size in memory of a row group of a parquet file."""

MAX_TERMINAL_BYTES = 16 << 20
"""Bytes after which output to a terminal ends, with a note."""


def write_result(
    sql: str, dsn: str | None, form: str, out: Path | None, params: Parameters | None = None
) -> None:
    """Run `sql` and write its result to `out`, by default to standard output.

    Raises:
        QueryFailed: ClickHouse refuses the query.
        BadFormat: a binary format cannot be written to a terminal.
    """
    with Store.open(dsn, create=False) as store:
        if form == "table":
            with out.open("w") if out else nullcontext(sys.stdout) as text:
                # a trace can contain rich's markup, which must stay text
                print_table(
                    store.stream(sql, params), Console(file=text, markup=False, emoji=False)
                )
            return
        to_terminal = out is None and sys.stdout.isatty()
        if form.lower() in BINARY_FORMATS and to_terminal:
            raise BadFormat(
                f"The binary format '{form}' cannot be written to a terminal; use --out FILE."
            )
        target = out.open("wb") if out else nullcontext(sys.stdout.buffer)
        with target as file:
            if form == "parquet":
                _write_parquet(store, sql, params, file)
                return
            parts = store.export(sql, FORMATS.get(form, form), params)
            parts = _json_array(parts) if form == "json" else parts
            parts = _make_visible(parts) if to_terminal else parts
            _write_parts(parts, file, MAX_TERMINAL_BYTES if to_terminal else None)


def parse_parameters(pairs_of_options: list[str]) -> dict[str, str]:
    """Parse `name=value` pairs.

    Raises:
        BadParameter: an argument is not `name=value`.
    """
    pairs = [each.partition("=") for each in pairs_of_options]
    if wrong := [name for name, equals, _ in pairs if not (equals and name.isidentifier())]:
        raise BadParameter(
            f"--param {wrong[0]} is not name=value; e.g. --param run=demo for {{run:String}} in "
            "the query."
        )
    return {name: value for name, _, value in pairs}


@contextmanager
def ignore_closed_pipe() -> Iterator[None]:
    """Exit without an error when the reader of a pipe (`| head`) closes it."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes standard output again when it exits
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _json_array(lines: Iterator[bytes]) -> Iterator[bytes]:
    """Join JSON lines to one JSON array; a line break inside a value is always escaped."""
    before, rest = b"[\n", b""
    for part in lines:
        *whole, rest = (rest + part).split(b"\n")
        if whole:
            yield before + b",\n".join(whole)
            before = b",\n"
    yield b"\n]\n" if before == b",\n" else b"[]\n"


def _make_visible(parts: Iterator[bytes]) -> Iterator[bytes]:
    """Escape control characters for a terminal; a character can span two parts."""
    decoder = getincrementaldecoder("utf-8")("backslashreplace")
    for part in parts:
        yield visible(decoder.decode(part)).encode()
    yield visible(decoder.decode(b"", final=True)).encode()


def _write_parts(parts: Iterator[bytes], file: BinaryIO, limit: int | None) -> None:
    left = limit
    for part in parts:
        file.write(part if left is None else part[:left])
        left = None if left is None else left - len(part)
        if left is not None and left <= 0:
            file.flush()
            print(
                f"\nThese are the first {MAX_TERMINAL_BYTES >> 20} MiB; write all of it with --out "
                "FILE or to a pipe.",
                file=sys.stderr,
            )
            return
    file.flush()


def _write_parquet(store: Store, sql: str, params: Parameters | None, file: BinaryIO) -> None:
    """Write row groups as frames arrive: ClickHouse's own writer needs the whole result at once."""
    from pyarrow.parquet import ParquetWriter

    frames = store.frames(sql, params)
    empty = next(frames).to_arrow()
    with ParquetWriter(file, empty.schema, compression="zstd") as writer:
        pending: list[pl.DataFrame] = []
        for frame in frames:
            pending.append(frame)
            if sum(each.estimated_size() for each in pending) > ROW_GROUP_BYTES:
                writer.write_table(pl.concat(pending).to_arrow())
                pending = []
        if pending:
            writer.write_table(pl.concat(pending).to_arrow())


def print_table(frames: Iterator[pl.DataFrame], console: Console) -> None:
    """Print the first rows as a table, and the number of all rows.

    In a terminal that is too narrow for the table, print a line for each value instead. A file or a
    pipe has a table as wide as its values.
    """
    names: list[str] = []
    rows: list[list[str]] = []
    total = cut = 0
    shown = visible if console.is_terminal else str
    for frame in frames:
        names = [shown(name) for name in frame.columns]
        for row in frame.head(max(MAX_TABLE_ROWS - len(rows), 0)).iter_rows():
            cells = [shown(_cell(value)) for value in row]
            cut += sum(len(cell) > MAX_CELL_CHARACTERS for cell in cells)
            rows.append([_shortened(cell) for cell in cells])
        total += frame.height
        if total > MAX_COUNTED_ROWS:
            break
    if not rows:
        console.print("No rows.")
        return
    table = Table(*names)
    for cells in rows:
        table.add_row(*cells)
    width = console.measure(table, options=console.options.update(max_width=MAX_WIDTH)).maximum
    if console.is_terminal and width > console.width:
        _print_values(names, rows, console)
    else:
        console.width = max(console.width, width)
        console.print(table)
    if total > len(rows):
        of = f"more than {MAX_COUNTED_ROWS}" if total > MAX_COUNTED_ROWS else total
        console.print(f"{len(rows)} of {of} rows; all of them with --format csv or --out.")
    if cut:
        console.print(
            f"{quantity(cut, 'long cell')} cut at {MAX_CELL_CHARACTERS} characters; other formats "
            "write the full text."
        )


def _print_values(names: list[str], rows: list[list[str]], console: Console) -> None:
    """Print `column: value` on a line for each value; a line break in a value is shown as `\\n`."""
    for number, cells in enumerate(rows, 1):
        console.rule(Text(f"row {number}"), align="left", style="none")
        for name, cell in zip(names, cells, strict=True):
            line = Text.assemble((name, "bold"), ": ", cell.replace("\n", "\\n"))
            console.print(line, soft_wrap=True)


def _shortened(cell: str) -> str:
    return cell if len(cell) <= MAX_CELL_CHARACTERS else f"{cell[:MAX_CELL_CHARACTERS]}…"


def format_report(report: dict[str, object], as_json: bool) -> str:
    """Return a command's report as JSON, or as lines for people."""
    if as_json:
        return json.dumps(report, indent=2, ensure_ascii=False)
    return "\n".join(_lines(report, ""))


def _lines(report: dict[str, object], indent: str) -> Iterator[str]:
    for name, value in report.items():
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
