"""Rows of `otel.spans` become an OTLP request again."""

from collections.abc import Sequence
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from ltrain_collector.ingest.traces import KINDS, STATUSES
from ltrain_collector.transfer.fields import Row, fill, id_of, zipped

HEAD = ("ResourceAttributes", "ScopeName", "ScopeVersion")


def request(rows: Sequence[Row]) -> ExportTraceServiceRequest:
    """Give the request whose spans are `rows`, in their order."""
    made = ExportTraceServiceRequest()
    before: list[Any] = []
    for row in rows:
        head = [row[name] for name in HEAD]
        if head != before:
            resource = made.resource_spans.add()
            fill(resource.resource.attributes, row["ResourceAttributes"])
            scoped = resource.scope_spans.add()
            scoped.scope.name, scoped.scope.version = row["ScopeName"], row["ScopeVersion"]
            before = head
        _span(scoped.spans.add(), row)
    return made


def _span(span: Any, row: Row) -> None:
    span.trace_id, span.span_id = bytes.fromhex(row["TraceId"]), bytes.fromhex(row["SpanId"])
    span.parent_span_id = id_of(row["ParentSpanId"])
    span.trace_state, span.name = row["TraceState"], row["SpanName"]
    span.kind = _number(KINDS, row["SpanKind"])
    span.start_time_unix_nano = row["Timestamp"]
    span.end_time_unix_nano = row["Timestamp"] + row["Duration"]
    span.status.code = _number(STATUSES, row["StatusCode"])
    span.status.message = row["StatusMessage"]
    fill(span.attributes, row["SpanAttributes"])
    for at, name, said in zipped(row, "Events", "Timestamp", "Name", "Attributes"):
        fill(span.events.add(time_unix_nano=at, name=name).attributes, said)
    links = zipped(row, "Links", "TraceId", "SpanId", "TraceState", "Attributes")
    for trace, linked, state, said in links:
        link = span.links.add(trace_state=state, trace_id=id_of(trace), span_id=id_of(linked))
        fill(link.attributes, said)


def _number(names: tuple[str, ...], name: str) -> int:
    return names.index(name) if name in names else 0
