"""Convert Arrow tables of the engines to polars."""

from functools import lru_cache

import polars as pl
import pyarrow as pa


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
