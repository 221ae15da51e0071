"""Runs another agent with span ids and times that count up from one."""

import itertools
import runpy
import sys
from pathlib import Path
from typing import Any

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator

STARTED = 1_800_000_000_000_000_000


class CountingIds(RandomIdGenerator):
    """Generates ids from one on."""

    traces, spans = itertools.count(1), itertools.count(1)

    def generate_trace_id(self) -> int:
        return next(self.traces)

    def generate_span_id(self) -> int:
        return next(self.spans)


class Clock(SpanProcessor):
    """Makes every start and end of a span one millisecond later than the previous one."""

    def __init__(self) -> None:
        self._times = itertools.count(STARTED, 1_000_000)

    def on_start(self, span: Span, parent_context: Any = None) -> None:
        span._start_time = next(self._times)

    def on_end(self, span: ReadableSpan) -> None:
        span._end_time = next(self._times)


provider = trace.get_tracer_provider()
assert isinstance(provider, TracerProvider)
provider.id_generator.__class__ = CountingIds  # tracers hold a reference to the object
processors = provider._active_span_processor
processors._span_processors = (Clock(), *processors._span_processors)
del sys.argv[0]
runpy.run_path(str(Path(__file__).with_name(f"{sys.argv[0]}.py")), run_name="__main__")
