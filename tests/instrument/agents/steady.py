"""Ends spans on demand: a line `n` on stdin makes n; prints the slowest in microseconds."""

import sys
import time

from opentelemetry import trace

import ltrain

tracer = trace.get_tracer("agent")
made = 0
for line in sys.stdin:
    slowest = 0.0
    for _ in range(int(line)):
        began = time.perf_counter()
        tracer.start_span(f"span-{made}", attributes={"text": "x" * 4000}).end()
        slowest = max(slowest, time.perf_counter() - began)
        made += 1
    began = time.perf_counter()
    there = ltrain.flush()
    print(round(1e6 * slowest), round(1e3 * (time.perf_counter() - began)), there, flush=True)
