"""Prints as JSON what ltrain has changed in this process.

Arguments: functions as module:attribute, as in the table of patches; their modules are imported.
After `configure`, the process is instrumented from code, beside a tracer provider of its own.
"""

import functools
import gc
import json
import logging
import os
import sys
import threading
from importlib import import_module
from typing import Any

import wrapt
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

from ltrain_instrument.distro import DEFAULTS
from ltrain_instrument.lifecycle import capture

LOGGERS = ("opentelemetry.instrumentation.auto_instrumentation._load", "opentelemetry.sdk.trace")


def is_changed(function: Any) -> bool:
    """Return whether ltrain has defined a function, its wrapper, or one that it wraps."""
    while function is not None:
        wrapper = getattr(function, "_self_wrapper", function)
        while isinstance(wrapper, functools.partial):
            wrapper = wrapper.func
        if (getattr(wrapper, "__module__", None) or "").startswith("ltrain_"):
            return True
        function = getattr(function, "__wrapped__", None)
    return False


def find(target: str) -> Any:
    """Return what a target is now; None if this version of its library does not have it."""
    module_name, _, path = target.partition(":")
    found: Any = import_module(module_name)
    for name in path.split("."):
        found = getattr(found, name, None)
    return found


targets = sys.argv[1:]
if targets[:1] == ["configure"]:
    import ltrain

    del targets[0]
    trace.set_tracer_provider(TracerProvider())
    ltrain.configure()
found = {target: find(target) for target in targets}
wrappers = [each for each in gc.get_objects() if type(each) is wrapt.FunctionWrapper]
active = capture.current_capture()
if active is not None:  # adds a filter of warnings, as at the end of the process
    active.span_counter.end_open_spans()
filtered = [name for name in LOGGERS if logging.getLogger(name).filters]
if active is not None:
    active.span_counter.resume()
result = {
    "changed": [target for target, function in found.items() if is_changed(function)],
    "missing": [target for target, function in found.items() if function is None],
    "wrapped": sorted({each.__qualname__ for each in wrappers if is_changed(each)}),
    "filtered": filtered,
    "environ": {name: os.environ[name] for name in DEFAULTS if name in os.environ},
    "threads": hasattr(threading.Thread.start, "__wrapped__"),
}
print(json.dumps(result), flush=True)
trace.get_tracer("agent").start_span("open")
