"""`ltrain export`: stored records as OTLP, as the Collector's file exporter writes it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import orjson
import polars as pl

from ltrain_collector import rollouts, schema
from ltrain_collector.ingest import otlp_json
from ltrain_collector.store import Store
from ltrain_collector.transfer import log_records, points, spans
from ltrain_collector.transfer.fields import Row

RECORDS = 512
"""Of one request, as OpenTelemetry's exporters send."""


def line(request: Any) -> bytes:
    """Give a request as a line of JSON."""
    return orjson.dumps(otlp_json.document_of(request)) + b"\n"


def framed(request: Any) -> bytes:
    """Give a request as protobuf with its length before it."""
    body = bytes(request.SerializeToString())
    return len(body).to_bytes(4, "big") + body


FORMS: dict[str, Callable[[Any], bytes]] = {"json": line, "proto": framed}


@dataclass(frozen=True, slots=True)
class Output:
    """How the rows of a table go out."""

    table: str
    request: Callable[[Sequence[Row]], Any]
    order: str = ""
    """SQL that the query ends with; spans have an order of their own."""
    whole: str = "true"
    """SQL of the rows whose ids are OpenTelemetry's; others can be in a table, not in OTLP."""

    @property
    def view(self) -> str:
        return schema.view_of(self.table)


OUTPUTS: dict[str, tuple[Output, ...]] = {
    "traces": (
        Output(
            schema.TRACES,
            spans.request,
            whole="match(TraceId, '^[0-9a-f]{32}$') AND match(SpanId, '^[0-9a-f]{16}$')",
        ),
    ),
    "logs": (
        Output(
            schema.LOGS,
            log_records.request,
            f"ORDER BY RunId, RolloutId, Attempt, TraceId, Timestamp {schema.in_order()}",
            "match(TraceId, '^([0-9a-f]{32})?$') AND match(SpanId, '^([0-9a-f]{16})?$')",
        ),
    ),
    "metrics": tuple(
        Output(
            table,
            request,
            f"ORDER BY ServiceName, MetricName, Attributes, TimeUnix {schema.in_order()}",
        )
        for table, request in points.REQUESTS.items()
    ),
}
"""The tables of each signal."""


def strangers(store: Store, where: str, params: dict[str, object], signal: str = "traces") -> int:
    """Count the records that cannot be written as OTLP, for their ids."""
    return sum(
        int(
            store.query(
                f"SELECT count() AS n FROM {out.view} WHERE ({where}) AND NOT ({out.whole})", params
            )["n"].item()
        )
        for out in OUTPUTS[signal]
    )


def requests(
    store: Store, where: str, params: dict[str, object], signal: str = "traces"
) -> Iterator[Any]:
    """Give what `where` selects, whole rollouts one after another, each record once."""
    for _, request in counted(store, where, params, signal):
        yield request


def counted(
    store: Store, where: str, params: dict[str, object], signal: str
) -> Iterator[tuple[int, Any]]:
    """Do as `requests` does, each request with the number of its records."""
    for out in OUTPUTS[signal]:
        columns = ", ".join(f"`{name}`" for name in schema.WRITTEN[out.table])
        chosen = f"({where}) AND {out.whole}"
        sql = f"SELECT {columns} FROM {out.view} WHERE {chosen} {out.order}"
        frames = (
            store.stream(sql, params)
            if out.order
            else rollouts.stream(store, columns, chosen, params)
        )
        rows = (row for frame in frames for row in _rows(frame))
        while few := list(islice(rows, RECORDS)):
            yield len(few), out.request(few)


def _rows(frame: pl.DataFrame) -> Iterator[dict[str, Any]]:
    times = [name for name, kind in frame.schema.items() if kind == pl.Datetime]
    lists = [name for name, kind in frame.schema.items() if kind == pl.List(pl.Datetime)]
    typed = frame.with_columns(
        *(pl.col(name).dt.timestamp("ns") for name in times),
        *(pl.col(name).list.eval(pl.element().dt.timestamp("ns")) for name in lists),
    )
    return typed.iter_rows(named=True)
