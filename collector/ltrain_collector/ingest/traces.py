"""Encode spans as RowBinary rows of `otel_traces`, with the values that the exporter writes.

The fields are in the order of `schema.COLUMNS`.
"""

from collections.abc import Iterable

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, Span

from ltrain_collector import schema
from ltrain_collector.access import Grant
from ltrain_collector.ingest.rowbinary import array, datetime64, short_string, string, unsigned64
from ltrain_collector.ingest.rows import Rows
from ltrain_collector.ingest.values import attributes, service_name
from ltrain_collector.ingest.writer import RowWriter

KINDS = ("Unspecified", "Internal", "Server", "Client", "Producer", "Consumer")
STATUSES = ("Unset", "Ok", "Error")

NO_TRACE = bytes(16)
NO_SPAN = bytes(8)
"""All zeros: in OTLP an invalid id, as an empty one is."""

_NO_EVENTS = b"\0" * 3
_NO_LINKS = b"\0" * 4


def encode_traces(request: ExportTraceServiceRequest, grant: Grant | None = None) -> Rows:
    """Return the rows of a request; `grant` is what its key allows.

    Raises:
        TooLarge: the rows repeat too many bytes of resources and scopes.
    """
    writer = RowWriter(grant)
    for resource_spans in request.resource_spans:
        _write(writer, resource_spans)
    return writer.rows()


def _write(writer: RowWriter, spans: ResourceSpans) -> None:
    resource_attributes = spans.resource.attributes
    resource = short_string(service_name(resource_attributes)) + attributes(resource_attributes)
    for scoped in spans.scope_spans:
        head = resource + short_string(scoped.scope.name) + short_string(scoped.scope.version)
        writer.count_repeated(head, len(scoped.spans))
        for span in scoped.spans:
            violation = writer.policy_violation(spans.resource, scoped.scope, span)
            if writer.accept(span, _span_error(span, writer.latest) or violation):
                writer.add(schema.TRACES, _row(span, head))


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
