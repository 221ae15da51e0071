"""Writes each ended span to disk before `end()` returns; a spool sends it from there."""

import logging
import math
import os
import struct
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.common._internal import trace_encoder
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.resources import SERVICE_INSTANCE_ID
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor

from ltrain_instrument import settings
from ltrain_instrument.delivery.spool import Spool
from ltrain_instrument.errors import BadSetting, SpoolFull

BATCH_DELAY_VARIABLE = "OTEL_BSP_SCHEDULE_DELAY"
"""The variable with the milliseconds that spans wait on disk to be sent together."""
RESCAN_INTERVAL = 10.0
"""Seconds between two searches for orphans: hundreds of agents may share a folder."""
MEMORY_LIMIT = 32 << 20
"""Bytes of spans that an agent holds in memory if its disk fails."""

_logger = logging.getLogger("ltrain.export")


class SpoolSpanProcessor(SpanProcessor):
    """Appends each ended span to a spool before `end()` returns."""

    def __init__(self, spool: Spool, *, wait_if_away: bool = True, strict: bool = False) -> None:
        """Write to `spool`.

        Without `wait_if_away`, `force_flush` stops waiting when the collector turns out to be
        unreachable. If `strict`, `end()` of a span that the disk refuses raises the error.
        """
        self._spool, self._wait_if_away, self._strict = spool, wait_if_away, strict
        self._encoder = SpanEncoder()
        self._deadline = math.inf
        self._interrupted: list[ReadableSpan] = []
        """Spans whose write was interrupted by an exception of the agent's signal handler."""
        self.lost = 0
        """Number of spans that neither the disk nor the collector has."""
        reset = weakref.WeakMethod(self._reset_after_fork)
        os.register_at_fork(after_in_child=lambda: (bound := reset()) and bound())

    @classmethod
    def for_agent(cls, directory: Path) -> Self:
        """Return a processor that never waits for a collector and can hold spans in memory."""
        spool = Spool(
            directory,
            limit=_read_limit(),
            batch_delay=_batch_delay(),
            rescan_interval=RESCAN_INTERVAL,
            memory_limit=MEMORY_LIMIT,
        )
        return cls(spool, wait_if_away=False)

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Do nothing: a span is written when it ends."""

    def on_end(self, span: ReadableSpan) -> None:
        """Write the span to disk; if that fails, count it and warn."""
        if span.context is None or not span.context.trace_flags.sampled:
            return
        self._write(span)
        while self._interrupted:
            self._write(self._interrupted.pop())

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        """Wait until the collector has acknowledged all spans."""
        while self._interrupted:
            self._write(self._interrupted.pop())
        timeout = min(timeout_millis / 1000, self._seconds_left)
        return self._spool.flush(timeout, wait_if_away=self._wait_if_away) and self.lost == 0

    def shutdown(self) -> None:
        """Send what can be sent at once and leave the rest on disk."""
        self._spool.close(min(2.0, self._seconds_left))

    def set_deadline(self, deadline: float) -> None:
        """Wait for nothing after `deadline` on the monotonic clock."""
        self._deadline = deadline

    def clear_deadline(self) -> None:
        """Undo `set_deadline`, in a process that continues."""
        self._deadline = math.inf

    def warn_of_waiting_spans(self) -> None:
        """Warn, at process exit, that the collector does not have all spans."""
        self._spool.warn_of_waiting_spans()

    def warn_of_lost_spans(self) -> None:
        """Count the spans that are in memory only, at process exit, and warn."""
        if self._spool.held_in_memory:
            self._count_lost(self._spool.disk_error, self._spool.held_in_memory)

    @property
    def _seconds_left(self) -> float:
        return max(0.0, self._deadline - time.monotonic())

    def _write(self, span: ReadableSpan) -> None:
        try:
            self._spool.append(self._encoder.encode_request(span))
        except OSError as error:
            self._count_lost(error)
            if self._strict:
                raise
        except Exception as error:  # an attribute may have a value of any type
            self.lost += 1
            _logger.warning("ltrain: span '%s' cannot be encoded: %s", span.name, error)
        except BaseException:  # raised by a signal handler of the agent
            self._interrupted.append(span)
            raise

    def _count_lost(self, error: OSError | None, count: int = 1) -> None:
        if not self.lost:
            reason = str(error)
            if not isinstance(error, SpoolFull):
                reason = (
                    f"{self._spool.directory} is not writable ({error}). "
                    f"Set {settings.HOME.name} to a folder that is."
                )
            _logger.warning("ltrain: spans are lost: %s", reason)
        self.lost += count

    def _reset_after_fork(self) -> None:
        self._interrupted = []


def _read_limit() -> int:
    try:
        return settings.SPOOL_LIMIT.read()
    except BadSetting as error:  # an invalid limit must not cost the agent its spans
        _logger.warning("ltrain: %s The default is used.", error)
        return int(settings.SPOOL_LIMIT.default)


def _batch_delay() -> float:
    """Return the delay in seconds; like OpenTelemetry, use the default for an invalid number."""
    text = os.environ.get(BATCH_DELAY_VARIABLE, "")
    return int(text) / 1000 if text.strip().isdecimal() else 0.5


_RESOURCE_SPANS, _SCOPE_SPANS, _SPANS = 1, 2, 2
"""Field numbers of the resource groups of a request, of their scope groups, and of those groups'
spans."""
_ATTRIBUTE, _VALUE = b"\x4a", b"\x12"
"""The tags of a span's attribute, and of the value in it."""
_BYTES = [bytes((value,)) for value in range(256)]
_DOUBLE = struct.Struct("<d")
_MAX_CACHED = 256
"""Number of pairs of resource and scope that are cached; a process has a few dozen."""


class SpanEncoder:
    """Serialises ended spans as OTLP requests; safe in threads and forked children.

    The resource and scope that spans share are serialised once. OpenTelemetry's encoder serialises
    them for each request and hashes the resource for each span, a third of the cost.
    """

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._instance = ""
        self._shared: dict[tuple[int, int], tuple[bytes, bytes, object]] = {}

    def encode_request(self, span: ReadableSpan) -> bytes:
        """Return the serialised ExportTraceServiceRequest of one span."""
        resource, scope = self._resource_and_scope(span)
        group = [resource, *_field(_SCOPE_SPANS, [scope, *_field(_SPANS, _serialize(span))])]
        return b"".join(_field(_RESOURCE_SPANS, group))

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
_encode_span: Callable[[Any], Any] = getattr(trace_encoder, "_encode_span", _encode_span_publicly)


class _WithoutScalars:
    """A span with those attributes only that are sequences or mappings."""

    def __init__(self, span: ReadableSpan, attributes: Mapping[str, Any]) -> None:
        self._span, self.attributes = span, attributes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._span, name)


def _serialize(span: ReadableSpan) -> list[bytes]:
    """Return a span as parts of a message; its attributes are parts of their own.

    OpenTelemetry's encoder takes four times as long for them, and protobuf copies a large text five
    times.
    """
    parts: list[bytes] = []
    others: dict[str, Any] = {}
    attributes: Mapping[str, Any] = span.attributes or {}
    for name, value in attributes.items():
        text = value.encode(errors="replace") if isinstance(value, str) else b""
        head = b"\x0a" + _varint(len(text)) if isinstance(value, str) else _number(value)
        if head is None:
            others[name] = value
            continue
        key, size = _key(name), _varint(len(head) + len(text))
        length = _varint(len(key) + 1 + len(size) + len(head) + len(text))
        parts += (b"".join((_ATTRIBUTE, length, key, _VALUE, size, head)), text)
    return [_encode_span(_WithoutScalars(span, others)).SerializeToString(), *parts]


@lru_cache(maxsize=1024)
def _key(name: str) -> bytes:
    return b"".join(_field(1, [name.encode(errors="replace")]))


def _number(value: Any) -> bytes | None:
    """Return a number of 64 bits as an AnyValue; None for any other value."""
    if value is True or value is False:
        return b"\x10\x01" if value else b"\x10\x00"
    if type(value) is int and -(2**63) <= value < 2**63:
        return b"\x18" + _varint(value & 2**64 - 1)
    return b"\x21" + _DOUBLE.pack(value) if type(value) is float else None


def _field(number: int, parts: Sequence[bytes]) -> list[bytes]:
    """Return the parts of a message as those of a length-delimited field of another message."""
    return [_BYTES[number << 3 | 2], _varint(sum(map(len, parts))), *parts]


def _varint(number: int) -> bytes:
    if number < 0x80:
        return _BYTES[number]
    return _BYTES[number & 0x7F | 0x80] + _varint(number >> 7)
