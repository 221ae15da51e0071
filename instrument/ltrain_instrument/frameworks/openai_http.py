"""HTTP requests of the OpenAI client: adds traceparent to them, and records failed ones as spans.

The span of a successful request would add nothing to the span of its model call, at the same CPU
cost. The span of a failed request is the only record of the client's own retries.
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
from ltrain_instrument.identity import use_context

_CALL = context.create_key("ltrain-model-call")

_logger = logging.getLogger("ltrain.wire")


@contextmanager
def model_call_context() -> Iterator[None]:
    """Mark requests as part of one model call; HTTP instrumentors then ignore them."""
    with suppress_http_instrumentation(), use_context(context.set_value(_CALL, True)):
        yield


def patch_httpx_transports() -> None:
    """Wrap the transports of httpx and httpx2, once they are imported."""
    for library in ("httpx", "httpx2"):
        wrapt.when_imported(library)(_wrap)


def _wrap(module: ModuleType) -> None:
    try:
        wrapt.wrap_function_wrapper(module, "HTTPTransport.handle_request", _send)
        wrapt.wrap_function_wrapper(module, "AsyncHTTPTransport.handle_async_request", _asend)
    except AttributeError as error:  # another version of the library
        _logger.info("ltrain: %s sends no traceparent: %s", module.__name__, error)


def _send(call: Callable[..., Any], transport: object, args: Any, kwargs: Any) -> Any:
    if context.get_value(_CALL) is None:
        return call(*args, **kwargs)
    request = args[0] if args else kwargs["request"]
    with _traced_request(request) as record_status:
        response = call(request)
        record_status(response.status_code)
    return response


async def _asend(
    call: Callable[..., Awaitable[Any]], transport: object, args: Any, kwargs: Any
) -> Any:
    if context.get_value(_CALL) is None:
        return await call(*args, **kwargs)
    request = args[0] if args else kwargs["request"]
    with _traced_request(request) as record_status:
        response = await call(request)
        record_status(response.status_code)
    return response


@contextmanager
def _traced_request(request: Any) -> Iterator[Callable[[int], None]]:
    """Add the trace context to a request, and write a span if it fails."""
    start_time = time.time_ns()
    inject(request.headers)

    def record_status(status: int) -> None:
        if status >= HTTPStatus.BAD_REQUEST:
            _write_failure_span(
                request, start_time, str(status), {"http.response.status_code": status}
            )

    try:
        yield record_status
    except BaseException as error:
        _write_failure_span(request, start_time, type(error).__name__, {})
        raise


def _write_failure_span(
    request: Any, start_time: int, error_type: str, extra: dict[str, Any]
) -> None:
    url = request.url
    span_attributes = {
        "http.request.method": request.method,
        "url.full": f"{url.scheme}://{url.netloc.decode()}{url.path}",
        "server.address": url.host,
        "error.type": error_type,
        **extra,
    }
    tracer = trace.get_tracer(SCOPE_INSTRUMENT)
    span = tracer.start_span(
        request.method, kind=SpanKind.CLIENT, attributes=span_attributes, start_time=start_time
    )
    span.set_status(StatusCode.ERROR)
    span.end()
