"""Export stored records as OTLP, in the format of the Collector's file exporter."""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import orjson
import polars as pl

from ltrain_collector import schema
from ltrain_collector.signals import TRACES, Signal, otlp_json
from ltrain_collector.store import Store, rollout_stream

BATCH_RECORDS = 512
"""Records of one request, as OpenTelemetry's exporters send them."""


def to_json_line(request: Any) -> bytes:
    """Return a request as a line of JSON."""
    return orjson.dumps(otlp_json.message_to_json(request)) + b"\n"


def to_framed_protobuf(request: Any) -> bytes:
    """Return a request as protobuf after its length."""
    body = bytes(request.SerializeToString())
    return len(body).to_bytes(4, "big") + body


FORMATS: dict[str, Callable[[Any], bytes]] = {"json": to_json_line, "proto": to_framed_protobuf}


def count_invalid_ids(
    store: Store, where: str, params: dict[str, object], signal: Signal = TRACES
) -> int:
    """Return the number of records that OTLP cannot contain because of their ids."""
    queries = (
        f"SELECT count() FROM {table.view} WHERE ({where}) AND NOT ({table.valid_ids})"
        for table in signal.tables
    )
    return sum(int(store.query(query, params).item()) for query in queries)


def export_requests(
    store: Store, where: str, params: dict[str, object], signal: Signal = TRACES
) -> Iterator[Any]:
    """Yield requests with the records that `where` selects: each once, rollout by rollout."""
    for _, request in export_batches(store, where, params, signal):
        yield request


def export_batches(
    store: Store, where: str, params: dict[str, object], signal: Signal
) -> Iterator[tuple[int, Any]]:
    """Yield the requests of `export_requests`, each with its number of records."""
    for table in signal.tables:
        columns = ", ".join(f"`{name}`" for name in table.columns)
        condition = f"({where}) AND {table.valid_ids}"
        sql = (
            f"SELECT {columns} FROM {table.view} WHERE {condition} "
            f"ORDER BY {table.order} {schema.ordered_read_settings()}"
        )
        frames = (
            store.stream(sql, params)
            if table.order
            else rollout_stream.stream_rollouts(store, columns, condition, params)
        )
        rows = (row for frame in frames for row in _rows(frame))
        while batch := list(islice(rows, BATCH_RECORDS)):
            yield len(batch), table.to_request(batch)


def _rows(frame: pl.DataFrame) -> Iterator[dict[str, Any]]:
    times = [name for name, kind in frame.schema.items() if kind == pl.Datetime]
    lists = [name for name, kind in frame.schema.items() if kind == pl.List(pl.Datetime)]
    typed = frame.with_columns(
        *(pl.col(name).dt.timestamp("ns") for name in times),
        *(pl.col(name).list.eval(pl.element().dt.timestamp("ns")) for name in lists),
    )
    return typed.iter_rows(named=True)
