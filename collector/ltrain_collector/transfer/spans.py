"""Convert rows of `otel.spans` to OTLP requests."""

from collections.abc import Sequence
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from ltrain_collector.ingest import KINDS, STATUSES
from ltrain_collector.transfer.fields import Row, add_attributes, nested_rows, parse_id

HEAD = ("ResourceAttributes", "ScopeName", "ScopeVersion")


def traces_request(rows: Sequence[Row]) -> ExportTraceServiceRequest:
    """Return a request with the spans of `rows`, in their order."""
    request = ExportTraceServiceRequest()
    previous_head: list[Any] = []
    for row in rows:
        head = [row[name] for name in HEAD]
        if head != previous_head:
            resource = request.resource_spans.add()
            add_attributes(resource.resource.attributes, row["ResourceAttributes"])
            scoped = resource.scope_spans.add()
            scoped.scope.name, scoped.scope.version = row["ScopeName"], row["ScopeVersion"]
            previous_head = head
        _span(scoped.spans.add(), row)
    return request


def _span(span: Any, row: Row) -> None:
    span.trace_id, span.span_id = bytes.fromhex(row["TraceId"]), bytes.fromhex(row["SpanId"])
    span.parent_span_id = parse_id(row["ParentSpanId"])
    span.trace_state, span.name = row["TraceState"], row["SpanName"]
    span.kind = _number(KINDS, row["SpanKind"])
    span.start_time_unix_nano = row["Timestamp"]
    span.end_time_unix_nano = row["Timestamp"] + row["Duration"]
    span.status.code = _number(STATUSES, row["StatusCode"])
    span.status.message = row["StatusMessage"]
    add_attributes(span.attributes, row["SpanAttributes"])
    for time, name, attributes in nested_rows(row, "Events", "Timestamp", "Name", "Attributes"):
        add_attributes(span.events.add(time_unix_nano=time, name=name).attributes, attributes)
    links = nested_rows(row, "Links", "TraceId", "SpanId", "TraceState", "Attributes")
    for trace, linked, state, attributes in links:
        link = span.links.add(trace_state=state, trace_id=parse_id(trace), span_id=parse_id(linked))
        add_attributes(link.attributes, attributes)


def _number(names: tuple[str, ...], name: str) -> int:
    return names.index(name) if name in names else 0
