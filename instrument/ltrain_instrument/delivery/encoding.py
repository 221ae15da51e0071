"""Serialises one ended span as an OTLP request.

The resource and scope that spans share are serialised once. OpenTelemetry's encoder serialises them
for each request and hashes the resource for each span, which is a third of the cost.
"""

import os
from collections.abc import Callable
from typing import Any
from uuid import uuid4

from opentelemetry.exporter.otlp.proto.common._internal import trace_encoder
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.resources import SERVICE_INSTANCE_ID
from opentelemetry.sdk.trace import ReadableSpan

_RESOURCE_SPANS, _SCOPE_SPANS, _SPANS = 1, 2, 2
"""Field numbers of the resource groups of a request, of their scope groups, and of those groups'
spans."""
_MAX_CACHED = 256
"""Number of pairs of resource and scope that are cached; a process has a few dozen."""


class SpanEncoder:
    """Caches the parts that spans share; safe in threads and forked children."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._instance = ""
        self._shared: dict[tuple[int, int], tuple[bytes, bytes, object]] = {}

    def encode_request(self, span: ReadableSpan) -> bytes:
        """Return the serialised ExportTraceServiceRequest of one span."""
        resource, scope = self._resource_and_scope(span)
        encoded: bytes = _encode_span(span).SerializeToString()
        group = resource + _field(_SCOPE_SPANS, scope + _field(_SPANS, encoded))
        return _field(_RESOURCE_SPANS, group)

    def _resource_and_scope(self, span: ReadableSpan) -> tuple[bytes, bytes]:
        """Return both messages without their repeated fields, which may follow in any order."""
        if os.getpid() != self._pid:
            # A forked child inherits its parent's resource but counts its own spans
            self._pid, self._instance, self._shared = os.getpid(), str(uuid4()), {}
        key = (id(span.resource), id(span.instrumentation_scope))
        cached = self._shared.get(key)
        if cached is None:
            if len(self._shared) >= _MAX_CACHED:
                self._shared.clear()
            # References keep the objects alive, so that no other object gets their ids
            references = span.resource, span.instrumentation_scope
            cached = self._shared[key] = (*self._encode_shared(span), references)
        return cached[0], cached[1]

    def _encode_shared(self, span: ReadableSpan) -> tuple[bytes, bytes]:
        (group,) = encode_spans([span]).resource_spans
        (scoped,) = group.scope_spans
        del scoped.spans[:]
        del group.scope_spans[:]
        for pair in group.resource.attributes:
            if self._instance and pair.key == SERVICE_INSTANCE_ID:
                pair.value.string_value = self._instance
        return group.SerializeToString(), scoped.SerializeToString()


def _encode_span_publicly(span: ReadableSpan) -> Any:
    """Return a span as an OTLP message, by the public encoder; it also encodes the resource."""
    return encode_spans([span]).resource_spans[0].scope_spans[0].spans[0]


# private: a release of OpenTelemetry may move it, which must not break an agent
_encode_span: Callable[[ReadableSpan], Any] = getattr(
    trace_encoder, "_encode_span", _encode_span_publicly
)


def _field(number: int, message: bytes) -> bytes:
    """Return a message as a length-delimited field of another message."""
    head = bytearray((number << 3 | 2,))
    length = len(message)
    while length > 0x7F:
        head.append(length & 0x7F | 0x80)
        length >>= 7
    head.append(length)
    return bytes(head) + message
