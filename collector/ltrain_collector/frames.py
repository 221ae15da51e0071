"""Arrow as the engines give it becomes polars as we promise it."""

import polars as pl
import pyarrow as pa


def frame(table: pa.Table) -> pl.DataFrame:
    """Give a table as polars: maps are `pl.Map`, times with a zone are in UTC."""
    given = pl.from_arrow(table)
    if not isinstance(given, pl.DataFrame):
        raise TypeError(f"A table became {type(given).__name__}.")
    zoned = {name: _in_utc(dtype) for name, dtype in given.schema.items()}
    return given.cast({name: dtype for name, dtype in zoned.items() if dtype != given.schema[name]})


def _in_utc(dtype: pl.DataType) -> pl.DataType:
    """Give the same type, a server's own time zone replaced, in lists too."""
    if isinstance(dtype, pl.Datetime) and dtype.time_zone:
        return pl.Datetime(dtype.time_unit, "UTC")
    if isinstance(dtype, pl.List) and isinstance(dtype.inner, pl.DataType):
        return pl.List(_in_utc(dtype.inner))
    return dtype
