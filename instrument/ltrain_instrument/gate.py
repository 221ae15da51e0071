"""Keeps the work of signal handlers out of what the main thread does with a span.

A handler runs between two instructions of the main thread. If that is about to write a span, or
holds the spool's lock, a farewell from the handler would lose the one and wait for the other: so it
is put off until the span is written.
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


class Gate:
    """A context in any thread, which puts off work on the main thread; it does not nest."""

    def __init__(self) -> None:
        self._reset()
        os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        self._inside = False
        self._later: Callable[[], None] | None = None

    def __enter__(self) -> None:
        if threading.get_ident() == threading.main_thread().ident:
            self._inside = True

    def __exit__(self, *_: object) -> None:
        if threading.get_ident() == threading.main_thread().ident:
            self._inside = False
            later, self._later = self._later, None
            if later is not None:
                later()

    def after(self, work: Callable[[], None]) -> None:
        """Run `work`, in a signal handler, or as soon as the main thread is out of the gate."""
        if self._inside:
            self._later = work
        else:
            work()


class GatedProcessors(SynchronousMultiSpanProcessor):
    """A provider's processors, each start and end of a span inside a gate."""

    def __init__(self, gate: Gate) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._gate = gate

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Pass it on."""
        with self._gate:
            super().on_start(span, parent_context)

    def _on_ending(self, span: Span) -> None:
        self._gate.__enter__()  # left by `on_end`, which the SDK calls next
        super()._on_ending(span)

    def on_end(self, span: ReadableSpan) -> None:
        """Pass it on."""
        with self._gate:
            super().on_end(span)


def put_in_gate(provider: TracerProvider, gate: Gate) -> None:
    """Gate the provider's processors; it must not have made a tracer yet."""
    gated = GatedProcessors(gate)
    gated._span_processors = provider._active_span_processor._span_processors
    provider._active_span_processor = gated
