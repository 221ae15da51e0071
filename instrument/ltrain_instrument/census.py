"""Stamps identity on every span and counts the spans of each attempt.

A reader compares the counts with what has arrived, and so knows whether an attempt is complete. A
count is of spans that ended. Once the process leaves it is of all that started, and each further
span is counted before it can end: a daemon thread may be stopped anywhere.
"""

import logging
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from opentelemetry.trace import NonRecordingSpan, SpanContext, Tracer

from ltrain_instrument import attributes
from ltrain_instrument.ambient import identity_in, with_identity
from ltrain_instrument.identity import Identity

REMEMBERED = 4096
"""Attempts whose counts are kept after they were reported, for spans that end late."""

OPEN_AT_MOST = 16384
"""Open spans; the oldest ones beyond it are taken for abandoned, as streams often are."""

Attempt = tuple[str, int | None]


@dataclass(slots=True)
class Tally:
    """What this process has seen of one identity."""

    identity: Identity
    stamp: Mapping[str, str | int] = field(init=False)
    anchor: SpanContext | None = None
    """The first span seen: the trace that later spans without a parent join."""
    started: int = 0
    ended: int = 0
    reported: int = 0

    def due(self, leaving: bool) -> int:
        """Return how many spans a reader should wait for."""
        return self.started if leaving else self.ended

    def __post_init__(self) -> None:
        self.stamp = self.identity.attributes()


class Census(SpanProcessor):
    """The first processor of a provider: it must see a span before an exporter does."""

    def __init__(self, process: Identity) -> None:
        self.tracer: Tracer | None = None
        """What reports an attempt that has to be forgotten; the capture's."""
        self._process = Tally(process)
        self._open: dict[int, tuple[Span, Tally]] = {}
        self._tallies: OrderedDict[Attempt, Tally] = OrderedDict()
        self._lock = threading.Lock()
        self._leaving = False
        self._count_process()

    def _count_process(self) -> None:
        identity = self._process.identity
        if identity.rollout is not None:
            self._tallies[identity.rollout, identity.attempt] = self._process

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Stamp the identity of the context, else of the parent span, else of the process."""
        identity = identity_in(parent_context)
        tally = self._tally_of(identity, parent_context)
        if identity is None or identity == tally.identity:
            span.set_attributes(tally.stamp)
        else:  # plain baggage has changed a field of the same attempt
            span.set_attributes(identity.attributes())
        at = span.get_span_context()
        if at is None or not at.trace_flags.sampled:
            return
        if tally.anchor is None:
            tally.anchor = at
        if span.name != attributes.SPAN_PROCESS:
            self._count_start(tally)
        self._open[at.span_id] = (span, tally)
        if len(self._open) > OPEN_AT_MOST:
            self._end(next(iter(self._open.values()))[0])

    def _count_start(self, tally: Tally) -> None:
        with self._lock:
            tally.started += 1
            leaving = self._leaving
        if leaving and tally.identity.rollout is not None and self.tracer is not None:
            self._say(tally, self.tracer)

    def on_end(self, span: ReadableSpan) -> None:
        """Count the span for the identity it started with."""
        _, tally = self._open.pop(span.context.span_id, (None, None)) if span.context else _NONE
        if tally is not None and span.name != attributes.SPAN_PROCESS:
            with self._lock:
                tally.ended += 1

    def shutdown(self) -> None:
        """Do nothing: reports are the farewell's."""

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        """Hold nothing back."""
        return True

    def anchor(self, identity: Identity) -> SpanContext | None:
        """Give the first span that this process saw of the attempt."""
        return self._tally(identity).anchor

    def report(self, identity: Identity, tracer: Tracer) -> None:
        """End a span that says how many spans of the attempt a reader should have so far."""
        self._say(self._tally(identity), tracer)

    def _say(self, tally: Tally, tracer: Tracer) -> None:
        with self._lock:
            tally.reported = due = tally.due(self._leaving)
        where = with_identity(tally.identity)
        if tally.anchor is not None:
            where = trace.set_span_in_context(NonRecordingSpan(tally.anchor), where)
        counted = {attributes.SPANS: due}
        tracer.start_span(attributes.SPAN_PROCESS, where, attributes=counted).end()

    def report_grown(self, identity: Identity, tracer: Tracer) -> None:
        """Report the attempt if its count has grown since its last report."""
        tally = self._tally(identity)
        if tally.ended > tally.reported:
            self.report(identity, tracer)

    def report_all(self, tracer: Tracer) -> None:
        """Report every attempt whose count has grown since its last report."""
        with self._lock:
            leaving = self._leaving
            grown = [t.identity for t in self._tallies.values() if t.due(leaving) > t.reported]
        for identity in grown:
            self.report(identity, tracer)

    def leave(self) -> None:
        """End the spans that their owners will not end any more, innermost first."""
        with self._lock:
            self._leaving = True
        _sdk.addFilter(_not_of_ended)
        for span, _ in reversed(list(self._open.values())):
            self._end(span)

    def stay(self) -> None:
        """Count as before `leave`, in a process that lives on."""
        self._leaving = False
        _sdk.removeFilter(_not_of_ended)

    def _end(self, span: Span) -> None:
        if span.is_recording():
            span.set_attribute(attributes.TRUNCATED, True)
            span.end()

    def forked(self) -> None:
        """Forget, in a child process, what the parent will end and report."""
        for span, _ in self._open.values():
            span._span_processor = SpanProcessor()  # the child's `end()` is not the span's
        self._open.clear()
        self._tallies.clear()
        self._lock = threading.Lock()
        self._process = Tally(self._process.identity)
        self._count_process()

    def _tally_of(self, identity: Identity | None, where: Context | None) -> Tally:
        if identity is not None:
            return self._tally(identity)
        parent = trace.get_current_span(where).get_span_context().span_id
        _, tally = self._open.get(parent, _NONE)
        return tally or self._process

    def _tally(self, identity: Identity) -> Tally:
        if identity.rollout is None:
            return Tally(identity)  # belongs to no attempt: stamped, never counted
        key = (identity.rollout, identity.attempt)
        with self._lock:
            tally = self._tallies.get(key)
            if tally is not None:
                return tally
            tally = self._tallies[key] = Tally(identity)
        self._forget()
        return tally

    def _forget(self) -> None:
        """Report and let go of the oldest attempts: a service sees new ones for ever."""
        while len(self._tallies) > REMEMBERED:
            with self._lock:
                key, oldest = next(iter(self._tallies.items()))
                self._tallies.move_to_end(key)
            if oldest is self._process:
                continue
            if oldest.ended > oldest.reported and self.tracer is not None:
                self._say(oldest, self.tracer)
            with self._lock:
                self._tallies.pop(key, None)


def _not_of_ended(record: logging.LogRecord) -> bool:
    """Drop what the SDK says to owners whose spans were ended for them."""
    return "ended span" not in record.getMessage()


_sdk = logging.getLogger("opentelemetry.sdk.trace")

_NONE: tuple[None, None] = (None, None)
