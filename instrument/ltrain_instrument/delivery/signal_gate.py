"""Postpones the work of signal handlers while the main thread starts or ends a span.

A handler runs between two instructions of the main thread. If the main thread is writing a span or
holds the spool's lock, a shutdown from the handler would lose the span or deadlock on the lock. The
shutdown therefore runs after the span is written.
"""

import os
import threading
from collections.abc import Callable

from opentelemetry.context import Context
from opentelemetry.sdk.trace import (
    ReadableSpan,
    Span,
    SynchronousMultiSpanProcessor,
    TracerProvider,
)


class SignalGate:
    """Postpones work while the main thread is inside; any thread may enter, but not twice."""

    def __init__(self) -> None:
        self._reset()
        os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        self._inside = False
        self._postponed: Callable[[], None] | None = None

    def enter(self) -> None:
        """Postpone the work of signal handlers from here on."""
        if threading.get_ident() == threading.main_thread().ident:
            self._inside = True

    def leave(self) -> None:
        """Run the postponed work."""
        if threading.get_ident() == threading.main_thread().ident:
            self._inside = False
            postponed, self._postponed = self._postponed, None
            if postponed is not None:
                postponed()

    def run_outside(self, work: Callable[[], None]) -> None:
        """Run `work` of a signal handler, now or as soon as the main thread leaves the gate."""
        if self._inside:
            self._postponed = work
        else:
            work()


class GatedProcessors(SynchronousMultiSpanProcessor):
    """The processors of a provider; each start and end of a span is inside a gate."""

    def __init__(self, gate: SignalGate) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._gate = gate

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Call the processors inside the gate."""
        self._gate.enter()
        try:
            super().on_start(span, parent_context)
        finally:
            self._gate.leave()

    def _on_ending(self, span: Span) -> None:
        self._gate.enter()  # `on_end`, which the SDK calls next, leaves it
        super()._on_ending(span)

    def on_end(self, span: ReadableSpan) -> None:
        """Call the processors inside the gate."""
        self._gate.enter()
        try:
            super().on_end(span)
        finally:
            self._gate.leave()


def gate_processors(provider: TracerProvider, gate: SignalGate) -> None:
    """Gate the provider's processors; it must not have created a tracer yet."""
    gated = GatedProcessors(gate)
    gated._span_processors = provider._active_span_processor._span_processors
    provider._active_span_processor = gated
