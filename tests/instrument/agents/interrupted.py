"""Is interrupted by SIGTERM at each line of a span's method: one child process for each line."""

import os
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from opentelemetry import trace
from opentelemetry.sdk.trace import Span

tracer = trace.get_tracer("agent")


def send_signal_at(line: int, method: Callable[..., object]) -> Callable[..., Any]:
    """Return a trace function that sends the signal before a line of `method` runs."""
    left = line

    def trace_line(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal left
        if event == "line":
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGTERM)
        return trace_line

    def trace_call(frame: FrameType, event: str, argument: object) -> Any:
        return trace_line if frame.f_code is method.__code__ else None

    return trace_call


def run_child(name: str, line: int) -> None:
    span = tracer.start_span("interrupted")
    sys.settrace(send_signal_at(line, getattr(Span, name)))
    if name == "end":
        span.end()
    else:
        span.set_attribute("key", "value")
    sys.settrace(None)


def main(name: str) -> None:
    line = 0
    while True:
        child = os.fork()
        if child == 0:
            run_child(name, line)
            os._exit(0)
        if os.waitpid(child, 0)[1] == 0:  # past the last line
            break
        line += 1
    print(line, flush=True)


main(sys.argv[1])
