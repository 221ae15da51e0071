"""Arrow as the engines give it becomes polars as we promise it."""

from functools import lru_cache

import polars as pl
import pyarrow as pa


def frame(table: pa.Table | pa.RecordBatch) -> pl.DataFrame:
    """Give a table as polars: maps are `pl.Map`, times with a zone are in UTC."""
    for at, field in _zoned(table.schema):
        # relabelled in Arrow, which costs nothing: a cast of polars' costs more than all the rest
        table = table.set_column(at, field, table.column(at).cast(field.type))
    given = pl.from_arrow(table)
    if not isinstance(given, pl.DataFrame):
        raise TypeError(f"A table became {type(given).__name__}.")
    return given


@lru_cache(maxsize=256)
def _zoned(schema: pa.Schema) -> tuple[tuple[int, pa.Field], ...]:
    """Give the columns, by their place, whose times are in a server's own zone."""
    utc = ((at, field.with_type(_in_utc(field.type))) for at, field in enumerate(schema))
    return tuple((at, field) for at, field in utc if field.type != schema.field(at).type)


def _in_utc(dtype: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(dtype) and dtype.tz:
        return pa.timestamp(dtype.unit, "UTC")
    if pa.types.is_list(dtype):
        return pa.list_(dtype.value_field.with_type(_in_utc(dtype.value_type)))
    return dtype
