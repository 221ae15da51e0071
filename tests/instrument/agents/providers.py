"""Sets up a tracer provider of its own, before or after ltrain, and records a span with each."""

import sys
from collections.abc import Sequence

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

import ltrain


class PrintingExporter(SpanExporter):
    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        for span in spans:
            print(span.name, (span.attributes or {}).get("text"))
        return SpanExportResult.SUCCESS


def create_provider(early: bool) -> TracerProvider:
    provider = TracerProvider()
    if early:
        provider.add_span_processor(SimpleSpanProcessor(PrintingExporter()))
    trace.set_tracer_provider(provider)
    if not early:
        provider.add_span_processor(SimpleSpanProcessor(PrintingExporter()))
    return provider


before, early = trace.get_tracer("before"), "early" in sys.argv
provider = create_provider(early)
if "configure" in sys.argv:
    ltrain.configure()
before.start_span("before").end()
with ltrain.rollout(rollout="r7"):
    span = trace.get_tracer("agent").start_span("global", attributes={"text": "a s3cret"})
    span.end()
    provider.get_tracer("agent").start_span("own").end()
    ltrain.reward(1.0)
