"""Parts of both engines: query parameters, streamed formats, and frames made from Arrow."""

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

import polars as pl
import pyarrow as pa

READING_STATEMENT = re.compile(
    r"\s*+(?:(?>/\*.*?\*/)\s*+|--[^\n]*+\n\s*+)*+\(*+\s*+(?:SELECT|WITH)\b", re.I | re.S
)
"""A statement that returns rows and can be streamed. The pattern never backtracks over a comment:
forty comments would take a minute and block every other thread."""

STREAMED = {
    *("CSV", "JSONEachRow", "JSONLines", "NDJSON", "Native", "RowBinary"),
    *("TabSeparated", "TSV", "TabSeparatedRaw", "TSVRaw"),
    *("JSONCompactEachRow", "JSONStringsEachRow", "JSONCompactStringsEachRow"),
}
"""Formats in which the concatenated parts are the result."""

STREAMED_WITH_HEADER = {
    f"{name}{header}": lines
    for name in ("CSV", "TabSeparated", "TSV", "JSONCompactEachRow", "JSONCompactStringsEachRow")
    for header, lines in (("WithNames", 1), ("WithNamesAndTypes", 2))
}
"""Formats in which every part starts with the same header, and its number of lines: the header is
removed from all parts but the first."""

Parameters = Mapping[str, object]
"""Values of `{name:Type}` in SQL."""


def is_streamable(form: str) -> bool:
    """Return whether results in this format are streamed in bounded memory."""
    return form in STREAMED or form in STREAMED_WITH_HEADER


def stream_result(connection: Any, sql: str, form: str, one_piece: bool = False) -> Iterator[bytes]:
    """Run `sql` and yield the result in `form`, in parts where the format allows it.

    Args:
        one_piece: a setting gives the format a beginning and an end, so it cannot be streamed.
    """
    if one_piece or not is_streamable(form) or not READING_STATEMENT.match(sql):
        yield connection.query(sql, form).bytes() or b""
        return
    header: bytes | None = None
    with connection.send_query(sql, form) as stream:
        for one in stream:
            part = one.bytes()
            if form in STREAMED:
                yield part
            elif header is None:
                header = _first_lines(
                    part, STREAMED_WITH_HEADER[form], quoted=form.startswith("CSV")
                )
                yield part
            else:
                yield part.removeprefix(header)


def _first_lines(part: bytes, count: int, quoted: bool) -> bytes:
    """Return the first `count` lines; with `quoted`, a line break in quotes does not end a line."""
    end = 0
    while count:
        line_end = part.find(b"\n", end)
        if line_end < 0:
            return part
        end = line_end + 1
        if not quoted or part[:end].count(b'"') % 2 == 0:
            count -= 1
    return part[:end]


def as_settings(params: Parameters | None) -> dict[str, str]:
    """Return the parameters as `param_<name>` settings of a session or an HTTP request."""
    if not params:
        return {}
    # importing it takes a third of a second, which `ltrain up` does not need
    from clickhouse_connect.driver.binding import format_bind_value

    return {f"param_{name}": str(format_bind_value(value)) for name, value in params.items()}


def time_limit(seconds: int) -> dict[str, str]:
    """Return the setting that ends a query after `seconds`; 0 sets no limit."""
    return {"max_execution_time": str(seconds)} if seconds else {}


def empty_frame(schema: pa.Schema) -> pl.DataFrame:
    """Return a frame without rows."""
    # `schema.empty_table()` imports pandas, a third of the time of `ltrain sql`
    return to_polars(pa.Table.from_batches([], schema))


def to_polars(table: pa.Table | pa.RecordBatch) -> pl.DataFrame:
    """Return a table as a frame: maps are `pl.Map`, times with a zone are in UTC."""
    for at, field in _zoned_columns(table.schema):
        # changing the zone in Arrow costs nothing; a cast in polars costs more than all the rest
        table = table.set_column(at, field, table.column(at).cast(field.type))
    converted = pl.from_arrow(table)
    if not isinstance(converted, pl.DataFrame):
        raise TypeError(f"polars converted a table to {type(converted).__name__}.")
    return converted


@lru_cache(maxsize=256)
def _zoned_columns(schema: pa.Schema) -> tuple[tuple[int, pa.Field], ...]:
    """Return index and UTC field of each column with times in another zone."""
    utc = ((at, field.with_type(_in_utc(field.type))) for at, field in enumerate(schema))
    return tuple((at, field) for at, field in utc if field.type != schema.field(at).type)


def _in_utc(dtype: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(dtype) and dtype.tz:
        return pa.timestamp(dtype.unit, "UTC")
    if pa.types.is_list(dtype):
        return pa.list_(dtype.value_field.with_type(_in_utc(dtype.value_type)))
    return dtype


def to_rows(frame: pl.DataFrame) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table of telemetry; times are nanoseconds since the epoch."""
    times = [name for name, kind in frame.schema.items() if kind == pl.Datetime]
    lists = [name for name, kind in frame.schema.items() if kind == pl.List(pl.Datetime)]
    typed = frame.with_columns(
        *(pl.col(name).dt.timestamp("ns") for name in times),
        *(pl.col(name).list.eval(pl.element().dt.timestamp("ns")) for name in lists),
    )
    return typed.iter_rows(named=True)
