"""Spans become rows of `otel_traces`, in RowBinary, with the values the exporter writes.

The fields are in the order of `schema.COLUMNS`.
"""

from collections.abc import Iterable

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, Span

from ltrain_collector import schema
from ltrain_collector.grants import Grant
from ltrain_collector.ingest.rowbinary import array, short, string, unsigned64
from ltrain_collector.ingest.rowbinary import time as moment
from ltrain_collector.ingest.rows import Rows
from ltrain_collector.ingest.values import attributes, service_of
from ltrain_collector.ingest.writer import Writer

KINDS = ("Unspecified", "Internal", "Server", "Client", "Producer", "Consumer")
STATUSES = ("Unset", "Ok", "Error")

NO_TRACE = bytes(16)
NO_SPAN = bytes(8)
"""OTLP's other way to say that there is none."""

_NO_EVENTS = b"\0" * 3
_NO_LINKS = b"\0" * 4


def encode(request: ExportTraceServiceRequest, grant: Grant | None = None) -> Rows:
    """Give the rows of one request; `grant` is what its client may claim.

    Raises:
        TooLarge: when they repeat too much.
    """
    writer = Writer(grant)
    for resource_spans in request.resource_spans:
        _write(writer, resource_spans)
    return writer.rows()


def _write(writer: Writer, spans: ResourceSpans) -> None:
    given = spans.resource.attributes
    resource = short(service_of(given)) + attributes(given)
    for scoped in spans.scope_spans:
        head = resource + short(scoped.scope.name) + short(scoped.scope.version)
        writer.repeats(head, len(scoped.spans))
        for span in scoped.spans:
            claimed = writer.claimed(spans.resource, scoped.scope, span)
            if writer.takes(span, _fault(span, writer.latest) or claimed):
                writer.add(schema.TRACES, _row(span, head))


def _fault(span: Span, latest: int) -> str:
    trace, number = span.trace_id, span.span_id
    if len(trace) != 16 or len(number) != 8 or trace == NO_TRACE or number == NO_SPAN:
        return "trace_id must have 16 bytes and span_id 8, not all of them 0"
    if not 0 < span.start_time_unix_nano < latest:
        return "start_time_unix_nano is 0 or more than a year ahead"
    return ""


def _row(span: Span, head: bytes) -> tuple[bytes, ...]:
    """Give the fields of one row; `head` is what all spans of one resource and scope share."""
    start, end, parent = span.start_time_unix_nano, span.end_time_unix_nano, span.parent_span_id
    status = span.status
    return (
        unsigned64(start),
        b"\x20" + span.trace_id.hex().encode(),
        b"\x10" + span.span_id.hex().encode(),
        string(parent.hex()) if parent and parent != NO_SPAN else b"\0",
        string(span.trace_state) if span.trace_state else b"\0",
        short(span.name),
        short(_name(KINDS, span.kind)),
        head,
        attributes(span.attributes),
        unsigned64(max(end - start, 0)),
        short(_name(STATUSES, status.code)),
        string(status.message) if status.message else b"\0",
        _events(span.events) if span.events else _NO_EVENTS,
        _links(span.links) if span.links else _NO_LINKS,
    )


def _events(events: Iterable[Span.Event]) -> bytes:
    times, names, fields = [], [], []
    for event in events:  # once, and none is kept: a message as Python has it is large
        times.append(moment(event.time_unix_nano))
        names.append(short(event.name))
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
