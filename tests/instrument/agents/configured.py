"""Instruments itself; with the argument `own`, after setting up a provider of its own."""

import sys
import threading

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

import ltrain

if sys.argv[1] == "own":
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter()))
    trace.set_tracer_provider(provider)
ltrain.configure()
ltrain.configure()
with ltrain.rollout(rollout="r7"):
    thread = threading.Thread(target=lambda: trace.get_tracer("agent").start_span("work").end())
    thread.start()
    thread.join()
