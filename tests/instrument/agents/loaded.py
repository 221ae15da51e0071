"""Prints which of the named modules are loaded, and records a span in a thread."""

import sys
import threading

from opentelemetry import trace


def work() -> None:
    trace.get_tracer("agent").start_span("in-thread").end()


print(*(name for name in sys.argv[1:] if name in sys.modules))
thread = threading.Thread(target=work)
thread.start()
thread.join()
