"""Makes the client's spans of LlamaIndex streams children of the model's span.

A stream calls the client in the first step of its generator, when the span of the model's call is
no longer current. That span is made current again for the duration of that step only.
"""

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any

import wrapt
from opentelemetry import trace
from opentelemetry.trace import Span

from ltrain_instrument.frameworks.streams import aiterate_stream, iterate_stream

Call = Callable[..., Any]


def patch_llama_index() -> None:
    """Wrap the models that use OpenAI's client, once they are imported."""
    wrapt.when_imported("llama_index.llms.openai.base")(_wrap)


def _wrap(module: ModuleType) -> None:
    model = getattr(module, "OpenAI", None)
    for kind in ("chat", "complete"):
        for name, wrapper in ((f"_stream_{kind}", _stream), (f"_astream_{kind}", _astream)):
            if hasattr(model, name):
                wrapt.wrap_function_wrapper(module, f"OpenAI.{name}", wrapper)


def _stream(call: Call, model: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    chunks = call(*args, **kwargs)
    return iterate_stream(lambda: chunks, _inside_span(_current_span()))


async def _astream(
    call: Callable[..., Awaitable[Any]],
    model: object,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    chunks = await call(*args, **kwargs)
    return aiterate_stream(lambda: chunks, _inside_span(_current_span()))


def _current_span() -> Span:
    """Return the current span itself; OpenInference makes a proxy current and empties it later."""
    span = trace.get_current_span()
    inner: Span = getattr(span, "__wrapped__", span)
    return inner


def _inside_span(span: Span) -> AbstractContextManager[Any]:
    return trace.use_span(
        span, end_on_exit=False, record_exception=False, set_status_on_exception=False
    )
