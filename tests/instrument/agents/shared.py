"""Posts with httpx and with httpx2, in the order of the arguments: `FIRST SECOND URL`."""

import importlib
import sys

import_module = importlib.import_module
first, second, url = sys.argv[1:]
clients = [import_module(first)]
instrumentor = sys.modules["opentelemetry.instrumentation.httpx"]
assert {"HTTPXClientInstrumentor", "HTTPX2ClientInstrumentor"} <= vars(instrumentor).keys()
assert "__getattr__" not in vars(instrumentor)
assert importlib.import_module is import_module
clients.append(import_module(second))
for client in clients:
    client.post(url, json={"by": client.__name__})
