"""Runs another agent with span ids and span times that count up from one."""

import itertools
import runpy
import sys
from pathlib import Path
from typing import Any

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider

STARTED = 1_800_000_000_000_000_000


class Clock(SpanProcessor):
    """Every beginning and every end of a span is a millisecond after the one before."""

    def __init__(self) -> None:
        self._times = itertools.count(STARTED, 1_000_000)

    def on_start(self, span: Span, parent_context: Any = None) -> None:
        span._start_time = next(self._times)

    def on_end(self, span: ReadableSpan) -> None:
        span._end_time = next(self._times)


provider = trace.get_tracer_provider()
assert isinstance(provider, TracerProvider)
ids: Any = provider.id_generator  # tracers hold on to it
ids.generate_trace_id = itertools.count(1).__next__
ids.generate_span_id = itertools.count(1).__next__
processors = provider._active_span_processor
processors._span_processors = (Clock(), *processors._span_processors)
del sys.argv[0]
runpy.run_path(str(Path(__file__).with_name(f"{sys.argv[0]}.py")), run_name="__main__")
