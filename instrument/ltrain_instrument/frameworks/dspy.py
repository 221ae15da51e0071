"""Adds the trace context to the requests of dspy's own HTTP client, which no instrumentor knows.

dspy 3.4 calls models by a client of its own where no environment variable names the address, else
by litellm.
"""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import wrapt
from opentelemetry.propagate import inject

TRANSPORTS = {"_sync": "StdlibTransport", "_async": "StdlibAsyncTransport"}
"""The classes that send requests, by module."""
PACKAGE = "dspy._vendor.lm15.transports"


def patch_dspy() -> None:
    """Wrap the transports once they are imported."""
    for name in TRANSPORTS:
        wrapt.when_imported(f"{PACKAGE}.{name}")(_wrap)


def _wrap(module: ModuleType) -> None:
    transport = TRANSPORTS[module.__name__.rpartition(".")[2]]
    if hasattr(getattr(module, transport, None), "stream"):
        wrapt.wrap_function_wrapper(module, f"{transport}.stream", _stream)


def _stream(call: Callable[..., Any], transport: object, args: Any, kwargs: Any) -> Any:
    request = args[0] if args else kwargs["request"]
    carrier = dict[str, str]()
    inject(carrier)
    sent = {name.lower() for name, _ in request.headers}
    # a retry may send the same request again
    request.headers.extend(each for each in carrier.items() if each[0] not in sent)
    return call(*args, **kwargs)
