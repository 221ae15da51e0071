"""OTLP requests become rows of `otel_traces`, in RowBinary, with the values the exporter writes.

The bytes are written by hand, field after field in the order of `schema.COLUMNS`: a frame or an
Arrow table in between costs as much again as the whole conversion.
"""

import json
import time
from base64 import b64encode
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from struct import Struct

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, Span

from ltrain_collector import claims
from ltrain_collector.errors import BadRequest
from ltrain_collector.keys import Grant

KINDS = ("Unspecified", "Internal", "Server", "Client", "Producer", "Consumer")
STATUSES = ("Unset", "Ok", "Error")

AHEAD = 366 * 86_400 * 10**9
"""Nanoseconds that a span may begin after now: a clock that is wrong by years makes a partition
for each of its months."""

_integer = Struct("<Q").pack
_NO_EVENTS = b"\0" * 3
_NO_LINKS = b"\0" * 4


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of one request; `rejected` spans have no row, for the reason given."""

    payload: bytes
    count: int
    rejected: int = 0
    reason: str = ""


def encode(body: bytes, grant: Grant | None = None) -> Rows:
    """Give the rows of one serialised `ExportTraceServiceRequest`, less what `grant` forbids.

    Raises:
        BadRequest: when the bytes are not such a request.
    """
    try:
        request = ExportTraceServiceRequest.FromString(body)
    except DecodeError as error:
        raise BadRequest(
            f"A body of {len(body)} bytes is not an OTLP ExportTraceServiceRequest in protobuf "
            "(JSON is not read here; set OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf)."
        ) from error
    writer = _Writer(grant)
    for resource_spans in request.resource_spans:
        writer.resource(resource_spans)
    reason = "; ".join(sorted(writer.reasons))
    return Rows(b"".join(writer.parts), writer.count, writer.rejected, reason)


class _Writer:
    def __init__(self, grant: Grant | None) -> None:
        self.grant = grant
        self.parts: list[bytes] = []
        self.count = 0
        self.rejected = 0
        self.reasons: set[str] = set()
        self.latest = time.time_ns() + AHEAD

    def resource(self, spans: ResourceSpans) -> None:
        attributes = spans.resource.attributes
        service = next((text(a.value) for a in attributes if a.key == "service.name"), "")
        resource = _short(service) + _map(attributes)
        for scoped in spans.scope_spans:
            head = resource + _short(scoped.scope.name) + _short(scoped.scope.version)
            for span in scoped.spans:
                claimed = claims.fault(self.grant, spans.resource, scoped.scope, span)
                if fault := self.fault(span) or claimed:
                    self.reasons.add(fault)
                    self.rejected += 1
                else:
                    claims.stamp(self.grant, span)
                    self.span(span, head)

    def fault(self, span: Span) -> str:
        if len(span.trace_id) != 16 or len(span.span_id) != 8:
            return "trace_id must have 16 bytes and span_id 8"
        if not 0 < span.start_time_unix_nano < self.latest:
            return "start_time_unix_nano is 0 or more than a year ahead"
        return ""

    def span(self, span: Span, head: bytes) -> None:
        """Append one row; `head` is what all spans of one resource and scope share."""
        start, end, parent = (
            span.start_time_unix_nano,
            span.end_time_unix_nano,
            span.parent_span_id,
        )
        status = span.status
        self.parts += (
            _integer(start),
            b"\x20" + span.trace_id.hex().encode(),
            b"\x10" + span.span_id.hex().encode(),
            _string(parent.hex()) if parent else b"\0",
            _string(span.trace_state) if span.trace_state else b"\0",
            _short(span.name),
            _short(_name(KINDS, span.kind)),
            head,
            _map(span.attributes),
            _integer(max(end - start, 0)),
            _short(_name(STATUSES, status.code)),
            _string(status.message) if status.message else b"\0",
            _events(span.events) if span.events else _NO_EVENTS,
            _links(span.links) if span.links else _NO_LINKS,
        )
        self.count += 1


def _events(events: Iterable[Span.Event]) -> bytes:
    events = list(events)
    size = _length(len(events))
    times = b"".join(_integer(event.time_unix_nano & 0x7FFFFFFFFFFFFFFF) for event in events)
    names = b"".join(_short(event.name) for event in events)
    return size + times + size + names + size + b"".join(_map(e.attributes) for e in events)


def _links(links: Iterable[Span.Link]) -> bytes:
    links = list(links)
    size = _length(len(links))
    columns = (
        b"".join(_string(link.trace_id.hex()) for link in links),
        b"".join(_string(link.span_id.hex()) for link in links),
        b"".join(_string(link.trace_state) for link in links),
        b"".join(_map(link.attributes) for link in links),
    )
    return b"".join(size + column for column in columns)


def _map(attributes: Iterable[KeyValue]) -> bytes:
    parts = [b""]
    append = parts.append
    for attribute in attributes:
        value = attribute.value
        raw = (value.string_value or text(value)).encode()
        size = len(raw)
        append(_short(attribute.key))
        append(_LENGTHS[size] if size < len(_LENGTHS) else _length(size))
        append(raw)
    parts[0] = _length(len(parts) // 3)
    return b"".join(parts)


def text(value: AnyValue) -> str:
    """Give a value as the exporter does: integers in decimal, arrays and maps as JSON."""
    kind = value.WhichOneof("value")
    if kind == "string_value":
        return value.string_value
    if kind == "int_value":
        return str(value.int_value)
    if kind == "bool_value":
        return "true" if value.bool_value else "false"
    if kind == "double_value":
        return repr(value.double_value).removesuffix(".0")
    if kind is None:
        return ""
    plain = _plain(value)
    return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)


def _plain(value: AnyValue) -> object:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_plain(item) for item in value.array_value.values]
    if kind == "kvlist_value":
        return {item.key: _plain(item.value) for item in value.kvlist_value.values}
    if kind == "bytes_value":
        return b64encode(value.bytes_value).decode()
    return getattr(value, kind) if kind else None


def _name(names: tuple[str, ...], number: int) -> str:
    return names[number] if 0 <= number < len(names) else names[0]


def _string(value: str) -> bytes:
    raw = value.encode()
    return _length(len(raw)) + raw


@lru_cache(maxsize=4096)
def _short(value: str) -> bytes:
    """`_string` for what repeats: names and keys."""
    return _string(value)


def _length(number: int) -> bytes:
    """LEB128, as RowBinary counts."""
    parts = bytearray()
    while number > 127:
        parts.append(number & 127 | 128)
        number >>= 7
    parts.append(number)
    return bytes(parts)


_LENGTHS = [_length(number) for number in range(1 << 14)]
"""Most lengths, ready made: an attribute costs two."""
