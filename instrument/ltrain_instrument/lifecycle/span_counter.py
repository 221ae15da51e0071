"""Sets identity on every span and counts the spans of each attempt.

A reader compares the counts with the spans that have arrived, and so knows whether an attempt is
complete. A count includes the spans that have ended. Once the process exits it includes all spans
that have started, and each new span is reported before it can end, because a daemon thread may be
stopped at any point.
"""

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field

from opentelemetry import trace
from opentelemetry.attributes import BoundedAttributes
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from opentelemetry.trace import NonRecordingSpan, SpanContext, Tracer

from ltrain_instrument import attributes, patches
from ltrain_instrument.identity import Identity, context_with_identity, identity_from_context
from ltrain_instrument.prompts import prompt_attributes

MAX_ATTEMPTS = 4096
"""Number of attempts whose counts are kept after their report, for spans that end late."""

MAX_OPEN_SPANS = 16384
"""Number of open spans; the oldest ones beyond it count as abandoned, as streams often are."""

END_TIMEOUT = 0.1
"""Seconds in which a running thread leaves a method of a span. After it, the holder of the span's
lock is the main thread, which a signal interrupted: the method does not continue."""

AttemptKey = tuple[str, int | None]


@dataclass(slots=True)
class AttemptCount:
    """The spans that this process has started and ended for one identity."""

    identity: Identity
    span_attributes: Mapping[str, str | int] = field(init=False)
    first_span: SpanContext | None = None
    """The first span of the identity; later spans without a parent join its trace."""
    started: int = 0
    ended: int = 0
    reported: int = 0

    def expected_spans(self, *, exiting: bool) -> int:
        """Return the number of spans that a reader must have."""
        return self.started if exiting else self.ended

    def __post_init__(self) -> None:
        self.span_attributes = self.identity.attributes()


class SpanCounter(SpanProcessor):
    """The first processor of a provider, because it must process a span before an exporter does."""

    def __init__(self, process: Identity) -> None:
        self.tracer: Tracer | None = None
        """Tracer that reports attempts which are no longer kept; `Capture` sets it."""
        self._process = AttemptCount(process)
        self._open: dict[int, tuple[Span, AttemptCount]] = {}
        self._counts: OrderedDict[AttemptKey, AttemptCount] = OrderedDict()
        self._lock = threading.Lock()
        self._exiting = False
        self._count_process()

    def _count_process(self) -> None:
        identity = self._process.identity
        if identity.rollout is not None:
            self._counts[identity.rollout, identity.attempt] = self._process

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Set the identity of the context, else of the parent span, else of the process."""
        identity = identity_from_context(parent_context)
        count = self._count_for_span(identity, parent_context)
        if identity is None or identity == count.identity:
            span.set_attributes(count.span_attributes)
        else:  # the agent's own baggage has changed a field of the same attempt
            span.set_attributes(identity.attributes())
        if versions := prompt_attributes():
            span.set_attributes(versions)
        span_context = span.get_span_context()
        if span_context is None or not span_context.trace_flags.sampled:
            return
        if count.first_span is None:
            count.first_span = span_context
        if span.name != attributes.SPAN_PROCESS:
            self._count_start(count)
        self._open[span_context.span_id] = (span, count)
        if len(self._open) > MAX_OPEN_SPANS:
            self._end(next(iter(self._open.values()))[0])

    def _count_start(self, count: AttemptCount) -> None:
        with self._lock:
            count.started += 1
            exiting = self._exiting
        if exiting and count.identity.rollout is not None and self.tracer is not None:
            self._write_report(count, self.tracer)

    def on_end(self, span: ReadableSpan) -> None:
        """Count the span for the identity with which it started."""
        _, count = self._open.pop(span.context.span_id, (None, None)) if span.context else _NONE
        if count is not None and span.name != attributes.SPAN_PROCESS:
            with self._lock:
                count.ended += 1

    def shutdown(self) -> None:
        """Do nothing: `Capture.shutdown` writes the reports."""

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        """Return True: nothing is buffered."""
        return True

    def first_span(self, identity: Identity) -> SpanContext | None:
        """Return the first span of the attempt in this process."""
        return self._count_of(identity).first_span

    def report(self, identity: Identity, tracer: Tracer) -> None:
        """Write a span that tells how many spans of the attempt a reader must wait for so far."""
        self._write_report(self._count_of(identity), tracer)

    def _write_report(self, count: AttemptCount, tracer: Tracer) -> None:
        with self._lock:
            count.reported = expected_spans = count.expected_spans(exiting=self._exiting)
        in_context = context_with_identity(count.identity)
        if count.first_span is not None:
            in_context = trace.set_span_in_context(NonRecordingSpan(count.first_span), in_context)
        count_attributes = {attributes.SPANS: expected_spans}
        tracer.start_span(attributes.SPAN_PROCESS, in_context, attributes=count_attributes).end()

    def report_if_grown(self, identity: Identity, tracer: Tracer) -> None:
        """Report the attempt if its count has grown since its last report."""
        count = self._count_of(identity)
        if count.ended > count.reported:
            self.report(identity, tracer)

    def report_all(self, tracer: Tracer) -> None:
        """Report every attempt whose count has grown since its last report."""
        with self._lock:
            exiting = self._exiting
            identities = [
                count.identity
                for count in self._counts.values()
                if count.expected_spans(exiting=exiting) > count.reported
            ]
        for identity in identities:
            self.report(identity, tracer)

    def end_open_spans(self) -> None:
        """End the spans that their owners will no longer end, innermost first."""
        with self._lock:
            self._exiting = True
        if patches.LOG_FILTERS.is_enabled():
            _sdk_logger.addFilter(_is_relevant_warning)
        spans = [span for span, _ in reversed(list(self._open.values()))]
        ending = [span for span in spans if not span.is_recording()]
        for span in spans:
            _free_locks(span)
            self._end(span)
        self._complete_ends(ending)

    def _complete_ends(self, ending: list[Span]) -> None:
        """Write the spans whose `end()` a signal interrupted before their processors ran."""
        deadline = time.monotonic() + END_TIMEOUT
        while ending and time.monotonic() < deadline:
            time.sleep(END_TIMEOUT / 20)
            ending = [span for span in ending if _span_id(span) in self._open]
        for span in ending:
            span._span_processor.on_end(span._readable_span())

    def resume(self) -> None:
        """Count as before `end_open_spans`, in a process that continues."""
        self._exiting = False
        _sdk_logger.removeFilter(_is_relevant_warning)

    def _end(self, span: Span) -> None:
        if span.is_recording():
            span.set_attribute(attributes.TRUNCATED, True)
            span.end()

    def reset_after_fork(self) -> None:
        """Discard, in a child process, the spans that the parent ends and reports."""
        for span, _ in self._open.values():
            span._span_processor = SpanProcessor()  # `end()` in the child must not export the span
        self._open.clear()
        self._counts.clear()
        self._lock = threading.Lock()
        self._process = AttemptCount(self._process.identity)
        self._count_process()

    def _count_for_span(
        self, identity: Identity | None, in_context: Context | None
    ) -> AttemptCount:
        if identity is not None:
            return self._count_of(identity)
        parent = trace.get_current_span(in_context).get_span_context().span_id
        _, count = self._open.get(parent, _NONE)
        return count or self._process

    def _count_of(self, identity: Identity) -> AttemptCount:
        if identity.rollout is None:
            return AttemptCount(identity)  # belongs to no attempt: it has an identity but no count
        key = (identity.rollout, identity.attempt)
        with self._lock:
            count = self._counts.get(key)
            if count is not None:
                return count
            count = self._counts[key] = AttemptCount(identity)
        self._remove_oldest()
        return count

    def _remove_oldest(self) -> None:
        """Report and remove the oldest attempts, because a service gets new ones indefinitely."""
        while len(self._counts) > MAX_ATTEMPTS:
            with self._lock:
                key, oldest = next(iter(self._counts.items()))
                self._counts.move_to_end(key)
            if oldest is self._process:
                continue
            if oldest.ended > oldest.reported and self.tracer is not None:
                self._write_report(oldest, self.tracer)
            with self._lock:
                self._counts.pop(key, None)


def _span_id(span: Span) -> int:
    return span.get_span_context().span_id


def _free_locks(span: Span) -> None:
    """Replace the locks of a span, if a signal interrupted the main thread while it held them."""
    if span._lock.acquire(timeout=END_TIMEOUT):
        span._lock.release()
    else:
        span._lock = threading.Lock()
        if isinstance(span._attributes, BoundedAttributes):
            span._attributes._lock = threading.Lock()


def _is_relevant_warning(record: logging.LogRecord) -> bool:
    """Filter out the SDK's warnings to owners whose spans were ended for them."""
    return "ended span" not in record.getMessage()


_sdk_logger = logging.getLogger("opentelemetry.sdk.trace")

_NONE: tuple[None, None] = (None, None)
