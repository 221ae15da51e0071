"""Prints which of the named modules are loaded, and records a span in a thread.

`--import MODULE` imports one first.
"""

import sys
import threading
from importlib import import_module

from opentelemetry import trace


def work() -> None:
    trace.get_tracer("agent").start_span("in-thread").end()


names = sys.argv[1:]
if names[:1] == ["--import"]:
    import_module(names[1])
    del names[:2]
print(*(name for name in names if name in sys.modules))
thread = threading.Thread(target=work)
thread.start()
thread.join()
