"""A store in a folder, opened in this process."""

from collections.abc import Iterator
from io import BytesIO

import polars as pl
import pyarrow as pa

from ltrain_collector.store.chdb_engine import Engine
from ltrain_collector.store.formats import (
    Parameters,
    as_settings,
    empty_frame,
    time_limit,
    to_polars,
)

READ_SETTINGS = {"session_timezone": "UTC", "readonly": "2"}
"""Times are in UTC regardless of the machine's zone; readonly 2 forbids writes, not settings."""

FRAME_SETTINGS = {
    "preferred_block_size_bytes": str(4 << 20),
    "optimize_move_to_prewhere_if_final": "1",
}
"""ClickHouse's default blocks of 1 MB hold 200 wide spans, where a frame costs as much as its rows.
By default a query that removes duplicates reads all its columns of every span; with the second
setting it first checks the conditions on run, rollout, trace and time, which duplicates share."""

INSERT_ROWS = 8192


class EmbeddedBackend:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def batches(
        self, sql: str, params: Parameters | None, max_seconds: int = 0
    ) -> Iterator[pl.DataFrame]:
        """Yield an empty frame with the schema, then the frames of the result."""
        settings = {**as_settings(params), **FRAME_SETTINGS, **time_limit(max_seconds)}
        with self._engine.batches(sql, settings | READ_SETTINGS) as (schema, batches):
            yield empty_frame(schema)
            for batch in batches:
                yield to_polars(batch)

    def export(self, sql: str, form: str, params: Parameters | None) -> Iterator[bytes]:
        return self._engine.export(sql, form, {**as_settings(params), **READ_SETTINGS})

    def command(self, sql: str) -> None:
        self._engine.command(sql)

    def insert(self, table: str, rows: pa.Table) -> int:
        columns = ", ".join(f"`{name}`" for name in rows.schema.names)
        stream = BytesIO()
        with pa.ipc.new_stream(stream, rows.schema) as writer:
            writer.write_table(rows, max_chunksize=INSERT_ROWS)
        return self.insert_raw(f"{table} ({columns})", "ArrowStream", stream.getvalue())

    def insert_raw(self, into: str, form: str, payload: bytes) -> int:
        return self._engine.insert(f"INSERT INTO {into}", form, [payload])

    def close(self) -> None:
        self._engine.close()
