"""Export stored records as OTLP, in the format of the Collector's file exporter."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import orjson
import polars as pl

from ltrain_collector import schema
from ltrain_collector.ingest import otlp_json
from ltrain_collector.store import Store, rollout_stream
from ltrain_collector.transfer import log_records, points, spans
from ltrain_collector.transfer.fields import Row

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


@dataclass(frozen=True, slots=True)
class Output:
    """How the rows of a table are exported."""

    table: str
    request: Callable[[Sequence[Row]], Any]
    order: str = ""
    """The end of the query's SQL; empty for spans, which `rollouts` orders."""
    valid_ids: str = "true"
    """SQL condition of rows with valid OpenTelemetry ids; OTLP cannot contain others."""

    @property
    def view(self) -> str:
        return schema.view_name(self.table)


OUTPUTS: dict[str, tuple[Output, ...]] = {
    "traces": (
        Output(
            schema.TRACES,
            spans.traces_request,
            valid_ids="match(TraceId, '^[0-9a-f]{32}$') AND match(SpanId, '^[0-9a-f]{16}$')",
        ),
    ),
    "logs": (
        Output(
            schema.LOGS,
            log_records.logs_request,
            "ORDER BY RunId, RolloutId, Attempt, TraceId, Timestamp "
            f"{schema.ordered_read_settings()}",
            "match(TraceId, '^([0-9a-f]{32})?$') AND match(SpanId, '^([0-9a-f]{16})?$')",
        ),
    ),
    "metrics": tuple(
        Output(
            table,
            request,
            "ORDER BY ServiceName, MetricName, Attributes, TimeUnix "
            f"{schema.ordered_read_settings()}",
        )
        for table, request in points.REQUESTS.items()
    ),
}
"""The exported tables of each signal."""


def count_invalid_ids(
    store: Store, where: str, params: dict[str, object], signal: str = "traces"
) -> int:
    """Return the number of records that OTLP cannot contain because of their ids."""
    return sum(
        int(
            store.query(
                f"SELECT count() AS n FROM {out.view} WHERE ({where}) AND NOT ({out.valid_ids})",
                params,
            )["n"].item()
        )
        for out in OUTPUTS[signal]
    )


def export_requests(
    store: Store, where: str, params: dict[str, object], signal: str = "traces"
) -> Iterator[Any]:
    """Yield requests with the records that `where` selects: each once, rollout by rollout."""
    for _, request in export_batches(store, where, params, signal):
        yield request


def export_batches(
    store: Store, where: str, params: dict[str, object], signal: str
) -> Iterator[tuple[int, Any]]:
    """Yield the requests of `export_requests`, each with its number of records."""
    for out in OUTPUTS[signal]:
        columns = ", ".join(f"`{name}`" for name in schema.INSERT_COLUMNS[out.table])
        condition = f"({where}) AND {out.valid_ids}"
        sql = f"SELECT {columns} FROM {out.view} WHERE {condition} {out.order}"
        frames = (
            store.stream(sql, params)
            if out.order
            else rollout_stream.stream_rollouts(store, columns, condition, params)
        )
        rows = (row for frame in frames for row in _rows(frame))
        while batch := list(islice(rows, BATCH_RECORDS)):
            yield len(batch), out.request(batch)


def _rows(frame: pl.DataFrame) -> Iterator[dict[str, Any]]:
    times = [name for name, kind in frame.schema.items() if kind == pl.Datetime]
    lists = [name for name, kind in frame.schema.items() if kind == pl.List(pl.Datetime)]
    typed = frame.with_columns(
        *(pl.col(name).dt.timestamp("ns") for name in times),
        *(pl.col(name).list.eval(pl.element().dt.timestamp("ns")) for name in lists),
    )
    return typed.iter_rows(named=True)
