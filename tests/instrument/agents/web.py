"""A WSGI application whose requests are spans; `/hang` never answers, `/` returns the worker."""

import os
import time
from collections.abc import Callable, Iterable

from opentelemetry import trace

tracer = trace.get_tracer("agent")


def app(environ: dict[str, str], start_response: Callable[..., object]) -> Iterable[bytes]:
    with tracer.start_as_current_span(environ["PATH_INFO"]):
        if environ["PATH_INFO"] == "/hang":
            time.sleep(60)
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [str(os.getpid()).encode()]
