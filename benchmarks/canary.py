"""Time that a candidate adds to a call of production: its unit, its arm and three attributes."""

import argparse
import time
from statistics import median

from opentelemetry.sdk.trace import TracerProvider

from ltrain_train.gateway import Canary, RecentUnits, find_unit
from ltrain_transforms.deployment_file import Deployment

BAR = 50.0
"""Microseconds."""
HEADERS = {
    "host": "127.0.0.1:8000",
    "user-agent": "OpenAI/Python 3.1.0",
    "content-type": "application/json",
    "accept": "application/json",
    "authorization": "Bearer ltrain-x",
    "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
}
BODY = {"model": "policy", "messages": [{"role": "user", "content": "hi"}], "temperature": 0.7}


def measure(calls: int) -> float:
    """Return the microseconds of CPU for a call."""
    canary = Canary("policy", Deployment.begin(2, 0.1, by="benchmark"))
    tracer = TracerProvider().get_tracer("benchmark")
    spans = [tracer.start_span("call") for _ in range(calls)]
    units = RecentUnits()
    began = time.process_time()
    for number, span in enumerate(spans):
        canary.assign(units.date(find_unit(None, HEADERS, BODY, number)), span)
    return (time.process_time() - began) / calls * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=20_000)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    figures = [measure(options.calls) for _ in range(options.runs)]
    print(f"{median(figures):.1f} µs of CPU for a call (bar {BAR:.0f} µs)")


if __name__ == "__main__":
    main()
