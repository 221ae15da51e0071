"""A span from the start of a process to its end: the calls of a script then are one trace."""

import os
import sys
from pathlib import Path

from opentelemetry import context, trace

from ltrain_instrument.attributes import SCOPE_INSTRUMENT
from ltrain_instrument.lifecycle.capture import on_shutdown


def open_process_span() -> None:
    """Open a span as the parent of all spans of this process, unless a caller's span is it."""
    if trace.get_current_span().get_span_context().is_valid:
        return
    script = getattr(sys, "argv", [""])[0]
    span = trace.get_tracer(SCOPE_INSTRUMENT).start_span(Path(script).name or "process")
    context.attach(trace.set_span_in_context(span))
    process = os.getpid()

    def end() -> None:
        if os.getpid() == process:  # a fork has a copy of the span
            span.end()

    on_shutdown(end)
