"""Traces: spans as RowBinary rows of `otel_traces`, with the exporter's values, and back."""

from collections.abc import Iterable, Sequence
from itertools import groupby, islice
from operator import itemgetter
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, Span

from ltrain_collector import promoted_columns
from ltrain_collector.access import UNLIMITED, IngestPolicy
from ltrain_collector.signals.rowbinary import array, datetime64, short_string, string, unsigned64
from ltrain_collector.signals.signal import Retention, Signal, Table
from ltrain_collector.signals.values import (
    Row,
    add_attributes,
    attributes,
    nested_rows,
    parse_id,
    service_name,
)
from ltrain_collector.signals.writer import Rows, RowWriter

KINDS = ("Unspecified", "Internal", "Server", "Client", "Producer", "Consumer")
STATUSES = ("Unset", "Ok", "Error")

NO_TRACE = bytes(16)
NO_SPAN = bytes(8)
"""All zeros: in OTLP an invalid id, as an empty one is."""

_NAME = "otel.otel_traces"

_COLUMNS = (
    "Timestamp",
    "TraceId",
    "SpanId",
    "ParentSpanId",
    "TraceState",
    "SpanName",
    "SpanKind",
    "ServiceName",
    "ResourceAttributes",
    "ScopeName",
    "ScopeVersion",
    "SpanAttributes",
    "Duration",
    "StatusCode",
    "StatusMessage",
    "Events.Timestamp",
    "Events.Name",
    "Events.Attributes",
    "Links.TraceId",
    "Links.SpanId",
    "Links.TraceState",
    "Links.Attributes",
)
"""In the order of the fields that `_row` returns."""

_HEAD = ("ResourceAttributes", "ScopeName", "ScopeVersion")
"""The columns that the spans of one scope share."""

_NO_EVENTS = b"\0" * 3
_NO_LINKS = b"\0" * 4


def encode_traces(request: ExportTraceServiceRequest, policy: IngestPolicy = UNLIMITED) -> Rows:
    """Return the rows of a request; `policy` is what its key allows.

    Raises:
        TooLarge: the rows repeat too many bytes of resources and scopes.
    """
    writer = RowWriter(policy)
    for resource_spans in request.resource_spans:
        _write(writer, resource_spans)
    return writer.rows()


def _write(writer: RowWriter, spans: ResourceSpans) -> None:
    resource_attributes = spans.resource.attributes
    resource = short_string(service_name(resource_attributes)) + attributes(resource_attributes)
    misplaced = writer.policy.resource_violation(spans.resource)
    for scoped in spans.scope_spans:
        shared = misplaced or writer.policy.scope_violation(scoped.scope)
        head = resource + short_string(scoped.scope.name) + short_string(scoped.scope.version)
        writer.count_repeated(head, len(scoped.spans))
        for span in scoped.spans:
            violation = shared or writer.policy.record_violation(span)
            if writer.accept(span, _span_error(span, writer.latest) or violation):
                writer.add(_NAME, _row(span, head))


def _span_error(span: Span, latest: int) -> str:
    trace, number = span.trace_id, span.span_id
    if len(trace) != 16 or len(number) != 8 or trace == NO_TRACE or number == NO_SPAN:
        return "trace_id must have 16 bytes and span_id 8, not all of them 0"
    if not 0 < span.start_time_unix_nano < latest:
        return "start_time_unix_nano is 0 or more than a year ahead"
    return ""


def _row(span: Span, head: bytes) -> tuple[bytes, ...]:
    """Return the fields of one row; `head` are those that a resource and scope share."""
    start, end, parent = span.start_time_unix_nano, span.end_time_unix_nano, span.parent_span_id
    status = span.status
    return (
        unsigned64(start),
        b"\x20" + span.trace_id.hex().encode(),
        b"\x10" + span.span_id.hex().encode(),
        string(parent.hex()) if parent and parent != NO_SPAN else b"\0",
        string(span.trace_state) if span.trace_state else b"\0",
        short_string(span.name),
        short_string(_name(KINDS, span.kind)),
        head,
        attributes(span.attributes),
        unsigned64(max(end - start, 0)),
        short_string(_name(STATUSES, status.code)),
        string(status.message) if status.message else b"\0",
        _events(span.events) if span.events else _NO_EVENTS,
        _links(span.links) if span.links else _NO_LINKS,
    )


def _events(events: Iterable[Span.Event]) -> bytes:
    times, names, fields = [], [], []
    for event in events:  # one pass without a list of them: messages are large in Python
        times.append(datetime64(event.time_unix_nano))
        names.append(short_string(event.name))
        fields.append(attributes(event.attributes))
    return array(times) + array(names) + array(fields)


def _links(links: Iterable[Span.Link]) -> bytes:
    traces, spans, states, fields = [], [], [], []
    for link in links:
        traces.append(string(link.trace_id.hex()))
        spans.append(string(link.span_id.hex()))
        states.append(string(link.trace_state))
        fields.append(attributes(link.attributes))
    return array(traces) + array(spans) + array(states) + array(fields)


def _name(names: tuple[str, ...], number: int) -> str:
    return names[number] if 0 <= number < len(names) else names[0]


def traces_request(rows: Sequence[Row]) -> ExportTraceServiceRequest:
    """Return a request with the spans of `rows`, in their order."""
    request = ExportTraceServiceRequest()
    for (resource_attributes, name, version), spans in groupby(rows, itemgetter(*_HEAD)):
        resource = request.resource_spans.add()
        add_attributes(resource.resource.attributes, resource_attributes)
        scoped = resource.scope_spans.add()
        scoped.scope.name, scoped.scope.version = name, version
        for row in spans:
            _add_span(scoped.spans.add(), row)
    return request


def _add_span(span: Any, row: Row) -> None:
    span.trace_id, span.span_id = bytes.fromhex(row["TraceId"]), bytes.fromhex(row["SpanId"])
    span.parent_span_id = parse_id(row["ParentSpanId"])
    span.trace_state, span.name = row["TraceState"], row["SpanName"]
    span.kind = _code(KINDS, row["SpanKind"])
    span.start_time_unix_nano = row["Timestamp"]
    span.end_time_unix_nano = row["Timestamp"] + row["Duration"]
    span.status.code = _code(STATUSES, row["StatusCode"])
    span.status.message = row["StatusMessage"]
    add_attributes(span.attributes, row["SpanAttributes"])
    for time, name, pairs in nested_rows(row, "Events", "Timestamp", "Name", "Attributes"):
        add_attributes(span.events.add(time_unix_nano=time, name=name).attributes, pairs)
    links = nested_rows(row, "Links", "TraceId", "SpanId", "TraceState", "Attributes")
    for trace, linked, state, pairs in links:
        link = span.links.add(trace_state=state, trace_id=parse_id(trace), span_id=parse_id(linked))
        add_attributes(link.attributes, pairs)


def _code(names: tuple[str, ...], name: str) -> int:
    return names.index(name) if name in names else 0


def _matches(message: ExportTraceServiceRequest) -> bool:
    spans = (s for r in message.resource_spans for scoped in r.scope_spans for s in scoped.spans)
    return all(one.start_time_unix_nano for one in islice(spans, 1))


TRACES = Signal(
    name="traces",
    path="/v1/traces",
    service="opentelemetry.proto.collector.trace.v1.TraceService",
    request=ExportTraceServiceRequest,
    response=ExportTraceServiceResponse,
    doc="a span, once, however often it was sent: the exporter's columns, `IngestedAt`, and "
    "[ltrain's](attributes.md#columns-of-the-store), such as `RunId`, `TaskId`, `Mode`, `Wave`",
    records="spans",
    tables=(
        Table(
            name=_NAME,
            view="otel.spans",
            columns=_COLUMNS,
            steps=(
                *("02_traces", "03_trace_executions", "04_domain", "08_sender_traces"),
                *promoted_columns.step_names("traces"),
                "13_parts",
            ),
            view_files=("05_spans",),
            to_request=traces_request,
            valid_ids="match(TraceId, '^[0-9a-f]{32}$') AND match(SpanId, '^[0-9a-f]{16}$')",
            retention=Retention.ROLLOUT,
            derived=("otel.otel_trace_executions",),
        ),
    ),
    encode=encode_traces,
    matches=_matches,
)
