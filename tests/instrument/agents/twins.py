"""Uses one of httpx and httpx2, then also the other: `twins.py FIRST SECOND HOW URL`."""

import sys
from importlib import import_module

first, second, how, url = sys.argv[1:]
if first == "httpx2":
    import openai  # noqa: F401  uses httpx2; it must not import httpx
before = import_module(first)
assert second not in sys.modules, f"{second} was imported too early"

import opentelemetry.instrumentation.httpx as instrumentor_module  # noqa: E402  after the library

names = {"httpx": "HTTPXClientInstrumentor", "httpx2": "HTTPX2ClientInstrumentor"}
instrumentors = [getattr(instrumentor_module, names[first])]
if how == "asks":
    from opentelemetry.instrumentation.httpx import (
        SyncOpenTelemetryTransport,
        SyncOpenTelemetryTransportHttpx2,
    )

    assert second in sys.modules
    assert SyncOpenTelemetryTransport is not SyncOpenTelemetryTransportHttpx2
after = import_module(second)
assert getattr(instrumentor_module, names[first]) is instrumentors[0]
instrumentors.append(getattr(instrumentor_module, names[second]))
assert all(instrumentor().is_instrumented_by_opentelemetry for instrumentor in instrumentors)
assert not hasattr(instrumentor_module, "no_such_name")
for client in (before, after):
    client.post(url, json={"by": client.__name__})
