"""Uses one of httpx and httpx2, then the other, too: `twins.py FIRST SECOND HOW URL`."""

import sys
from importlib import import_module

first, second, how, url = sys.argv[1:]
if first == "httpx2":
    import openai  # noqa: F401  whose client it is: nothing else of it may bring the other one
before = import_module(first)
assert second not in sys.modules, f"{second} was imported by nobody"

import opentelemetry.instrumentation.httpx as home  # noqa: E402  its user comes after the library

names = {"httpx": "HTTPXClientInstrumentor", "httpx2": "HTTPX2ClientInstrumentor"}
makers = [getattr(home, names[first])]
if how == "asks":
    from opentelemetry.instrumentation.httpx import (
        SyncOpenTelemetryTransport,
        SyncOpenTelemetryTransportHttpx2,
    )

    assert second in sys.modules
    assert SyncOpenTelemetryTransport is not SyncOpenTelemetryTransportHttpx2
after = import_module(second)
assert getattr(home, names[first]) is makers[0]
makers.append(getattr(home, names[second]))
assert all(maker().is_instrumented_by_opentelemetry for maker in makers)
assert not hasattr(home, "no_such_name")
for client in (before, after):
    client.post(url, json={"by": client.__name__})
