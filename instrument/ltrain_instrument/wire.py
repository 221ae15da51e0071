"""HTTP below a model call of OpenAI's client: traceparent goes along, and what fails is a span.

The span of a request that is answered well says nothing that the call's own does not, and costs
as much CPU as that one. One that fails is the only sign of the client's own retries.
"""

import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from types import ModuleType
from typing import Any

import wrapt
from opentelemetry import context, trace
from opentelemetry.instrumentation.utils import suppress_http_instrumentation
from opentelemetry.propagate import inject
from opentelemetry.trace import SpanKind, StatusCode

from ltrain_instrument.attributes import SCOPE_INSTRUMENT

_CALL = context.create_key("ltrain-model-call")

_logger = logging.getLogger("ltrain.wire")


@contextmanager
def model_call() -> Iterator[None]:
    """Mark what is sent meanwhile as one model call's, which HTTP instrumentors leave alone."""
    with suppress_http_instrumentation():
        token = context.attach(context.set_value(_CALL, True))
        try:
            yield
        finally:
            context.detach(token)


def install() -> None:
    """Wrap the transports of httpx and httpx2, once they are imported."""
    for library in ("httpx", "httpx2"):
        wrapt.when_imported(library)(_wrap)


def _wrap(module: ModuleType) -> None:
    try:
        wrapt.wrap_function_wrapper(module, "HTTPTransport.handle_request", _send)
        wrapt.wrap_function_wrapper(module, "AsyncHTTPTransport.handle_async_request", _asend)
    except AttributeError as error:  # another version of the library
        _logger.info("ltrain: %s sends no traceparent: %s", module.__name__, error)


def _send(call: Callable[..., Any], transport: object, given: Any, named: Any) -> Any:
    if context.get_value(_CALL) is None:
        return call(*given, **named)
    request = given[0] if given else named["request"]
    with _sent(request) as answered:
        response = call(request)
        answered(response.status_code)
    return response


async def _asend(
    call: Callable[..., Awaitable[Any]], transport: object, given: Any, named: Any
) -> Any:
    if context.get_value(_CALL) is None:
        return await call(*given, **named)
    request = given[0] if given else named["request"]
    with _sent(request) as answered:
        response = await call(request)
        answered(response.status_code)
    return response


@contextmanager
def _sent(request: Any) -> Iterator[Callable[[int], None]]:
    """Add the context to a request, and end a span if it fails."""
    begun = time.time_ns()
    inject(request.headers)

    def answered(status: int) -> None:
        if status >= HTTPStatus.BAD_REQUEST:
            _failed(request, begun, str(status), {"http.response.status_code": status})

    try:
        yield answered
    except BaseException as error:
        _failed(request, begun, type(error).__name__, {})
        raise


def _failed(request: Any, begun: int, kind: str, more: dict[str, Any]) -> None:
    url = request.url
    said = {
        "http.request.method": request.method,
        "url.full": f"{url.scheme}://{url.netloc.decode()}{url.path}",
        "server.address": url.host,
        "error.type": kind,
        **more,
    }
    tracer = trace.get_tracer(SCOPE_INSTRUMENT)
    span = tracer.start_span(
        request.method, kind=SpanKind.CLIENT, attributes=said, start_time=begun
    )
    span.set_status(StatusCode.ERROR)
    span.end()
