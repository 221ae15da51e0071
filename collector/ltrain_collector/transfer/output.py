"""`ltrain export`: stored spans as OTLP, in the form that the Collector's file exporter writes."""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import orjson
import polars as pl
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from ltrain_collector import rollouts, schema
from ltrain_collector.ingest import otlp_json
from ltrain_collector.ingest.traces import KINDS, STATUSES
from ltrain_collector.store import Store

SPANS = 512
"""Of one request, as OpenTelemetry's exporters send."""

Value = Any


def line(request: ExportTraceServiceRequest) -> bytes:
    """Give a request as a line of JSON."""
    return orjson.dumps(otlp_json.document_of(request)) + b"\n"


def framed(request: ExportTraceServiceRequest) -> bytes:
    """Give a request as protobuf with its length before it."""
    body = bytes(request.SerializeToString())
    return len(body).to_bytes(4, "big") + body


FORMS: dict[str, Callable[[ExportTraceServiceRequest], bytes]] = {"json": line, "proto": framed}


IDS = "match(TraceId, '^[0-9a-f]{32}$') AND match(SpanId, '^[0-9a-f]{16}$')"
"""SQL of the spans whose ids are OpenTelemetry's; others can be in a table, not in OTLP."""


def strangers(store: Store, where: str, params: dict[str, object]) -> int:
    """Count the spans that cannot be written as OTLP, for their ids."""
    sql = f"SELECT count() AS n FROM otel.spans WHERE ({where}) AND NOT ({IDS})"
    return int(store.query(sql, params)["n"].item())


def requests(
    store: Store, where: str, params: dict[str, object]
) -> Iterator[ExportTraceServiceRequest]:
    """Give the spans that `where` selects, whole rollouts one after another, each span once."""
    columns = ", ".join(f"`{name}`" for name in schema.COLUMNS)
    frames = rollouts.stream(store, columns, f"({where}) AND {IDS}", params)
    rows = (row for frame in frames for row in _rows(frame))
    while few := list(islice(rows, SPANS)):
        yield _request(few)


def _rows(frame: pl.DataFrame) -> Iterator[dict[str, Value]]:
    typed = frame.with_columns(
        pl.col("Timestamp").dt.timestamp("ns"),
        pl.col("Events.Timestamp").list.eval(pl.element().dt.timestamp("ns")),
    )
    return typed.iter_rows(named=True)


def _request(rows: list[dict[str, Value]]) -> ExportTraceServiceRequest:
    request = ExportTraceServiceRequest()
    before: tuple[Value, ...] | None = None
    for row in rows:
        names = ("ResourceAttributes", "ScopeName", "ScopeVersion")
        head = tuple(row[name] for name in names)
        if head != before:
            resource = request.resource_spans.add()
            _fill(resource.resource.attributes, row["ResourceAttributes"])
            scoped = resource.scope_spans.add()
            scoped.scope.name, scoped.scope.version = row["ScopeName"], row["ScopeVersion"]
            before = head
        _span(scoped.spans.add(), row)
    return request


def _span(span: Any, row: dict[str, Value]) -> None:
    span.trace_id, span.span_id = bytes.fromhex(row["TraceId"]), bytes.fromhex(row["SpanId"])
    span.parent_span_id = _id(row["ParentSpanId"])
    span.trace_state, span.name = row["TraceState"], row["SpanName"]
    span.kind = _number(KINDS, row["SpanKind"])
    span.start_time_unix_nano = row["Timestamp"]
    span.end_time_unix_nano = row["Timestamp"] + row["Duration"]
    span.status.code = _number(STATUSES, row["StatusCode"])
    span.status.message = row["StatusMessage"]
    _fill(span.attributes, row["SpanAttributes"])
    events = (row[f"Events.{name}"] for name in ("Timestamp", "Name", "Attributes"))
    for at, name, said in zip(*events, strict=True):
        _fill(span.events.add(time_unix_nano=at, name=name).attributes, said)
    links = (row[f"Links.{name}"] for name in ("TraceId", "SpanId", "TraceState", "Attributes"))
    for trace, linked, state, said in zip(*links, strict=True):
        ids = {"trace_id": _id(trace), "span_id": _id(linked)}
        _fill(span.links.add(trace_state=state, **ids).attributes, said)


def _id(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        return b""


def _number(names: tuple[str, ...], name: str) -> int:
    return names.index(name) if name in names else 0


def _fill(attributes: Any, said: Value) -> None:
    pairs = said.items() if isinstance(said, dict) else said
    for key, value in pairs:
        attributes.add(key=key).value.string_value = value
