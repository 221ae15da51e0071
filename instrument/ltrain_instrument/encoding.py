"""Serialises one ended span as an OTLP request.

What spans share, their resource and scope, is serialised once: OpenTelemetry's encoder does it
again for each request and hashes the resource for each span, which is a third of the cost.
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
"""Numbers of the repeated fields of a request, of its groups by resource, and of those by scope."""
_KEPT = 256
"""Pairs of resource and scope that are remembered; a process has a few dozen."""


class Encoder:
    """Remembers what spans share; safe in threads and forked children."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._instance = ""
        self._shared: dict[tuple[int, int], tuple[bytes, bytes, object]] = {}

    def request(self, span: ReadableSpan) -> bytes:
        """Return the serialised ExportTraceServiceRequest of one span."""
        resource, scope = self._resource_and_scope(span)
        own: bytes = _encode_span(span).SerializeToString()
        group = resource + _field(_SCOPE_SPANS, scope + _field(_SPANS, own))
        return _field(_RESOURCE_SPANS, group)

    def _resource_and_scope(self, span: ReadableSpan) -> tuple[bytes, bytes]:
        """Return the two messages without what repeats in them: that may follow in any order."""
        if os.getpid() != self._pid:
            # A forked child inherits its parent's resource, but counts its spans on its own
            self._pid, self._instance, self._shared = os.getpid(), str(uuid4()), {}
        key = (id(span.resource), id(span.instrumentation_scope))
        known = self._shared.get(key)
        if known is None:
            if len(self._shared) >= _KEPT:
                self._shared.clear()
            # The objects stay alive here, so that no other gets their ids
            alive = span.resource, span.instrumentation_scope
            known = self._shared[key] = (*self._encoded(span), alive)
        return known[0], known[1]

    def _encoded(self, span: ReadableSpan) -> tuple[bytes, bytes]:
        (group,) = encode_spans([span]).resource_spans
        (scoped,) = group.scope_spans
        del scoped.spans[:]
        del group.scope_spans[:]
        for pair in group.resource.attributes:
            if self._instance and pair.key == SERVICE_INSTANCE_ID:
                pair.value.string_value = self._instance
        return group.SerializeToString(), scoped.SerializeToString()


def _public_encode(span: ReadableSpan) -> Any:
    """Return a span as OTLP's message; its resource is encoded for nothing."""
    return encode_spans([span]).resource_spans[0].scope_spans[0].spans[0]


# private: a release of OpenTelemetry may move it, and an agent must not end for that
_encode_span: Callable[[ReadableSpan], Any] = getattr(trace_encoder, "_encode_span", _public_encode)


def _field(number: int, message: bytes) -> bytes:
    """Return a message as a length-delimited field of another."""
    head = bytearray((number << 3 | 2,))
    length = len(message)
    while length > 0x7F:
        head.append(length & 0x7F | 0x80)
        length >>= 7
    head.append(length)
    return bytes(head) + message
