"""Ends n spans for each line `n` on stdin, and prints the slowest in microseconds."""

import sys
import time

from opentelemetry import trace

import ltrain

tracer = trace.get_tracer("agent")
count = 0
for line in sys.stdin:
    slowest = 0.0
    for _ in range(int(line)):
        started = time.perf_counter()
        tracer.start_span(f"span-{count}", attributes={"text": "x" * 4000}).end()
        slowest = max(slowest, time.perf_counter() - started)
        count += 1
    started = time.perf_counter()
    acknowledged = ltrain.flush()
    print(
        round(1e6 * slowest), round(1e3 * (time.perf_counter() - started)), acknowledged, flush=True
    )
