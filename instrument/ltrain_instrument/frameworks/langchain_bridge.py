"""Joins the spans of LangChain and of the OpenAI client in one trace.

OpenInference's LangChain tracer never makes its spans current, so the client's spans would become
children of whatever span surrounds the agent, or start a trace of their own. The bridge makes the
innermost LangChain run current for the duration of a model call.
"""

import logging
import os
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import ModuleType
from typing import Any

import wrapt
from opentelemetry import context, trace
from opentelemetry.trace import Span

from ltrain_instrument import patches
from ltrain_instrument.frameworks import openai_http, streams, traceloop
from ltrain_instrument.identity import use_context
from ltrain_instrument.lifecycle import capture

_LANGCHAIN = "openinference.instrumentation.langchain"
_RUNS = "langchain_core.runnables.config"
"""The module in which the current run is stored; if the agent does not import it, there are no
runs."""

_UNSET_TYPES = ("Omit", "NotGiven")

_logger = logging.getLogger("ltrain.bridge")

Call = Callable[..., Any]


def install() -> None:
    """Wrap LangChain's models and OpenAI's client, once they are imported.

    It runs after the instrumentors, so that its wrappers are outside theirs. Under another distro,
    which also calls every installed hook, it does nothing.
    """
    if capture.current_capture() is None:
        return
    if patches.LANGCHAIN.is_enabled():
        wrapt.when_imported("langchain_core.language_models.chat_models")(_wrap_models)
    if patches.OPENAI.is_enabled():
        wrapt.when_imported("openai.resources")(_wrap_clients)
        openai_http.patch_httpx_transports()
    if patches.TRACELOOP.is_enabled():
        traceloop.patch_traceloop()
    if patches.LANGCHAIN_OPENAI.is_enabled():
        patch_langchain_openai()


def current_langchain_span() -> Span | None:
    """Return the span of the caller's LangChain run; None outside of any run."""
    instrumentation = sys.modules.get(_LANGCHAIN)
    if instrumentation is None or _RUNS not in sys.modules or not _is_instrumented(instrumentation):
        return None
    span: Span | None = instrumentation.get_current_span()
    opening = streams.run_opening_stream()
    if opening is None:
        return span
    model: Span | None = instrumentation.LangChainInstrumentor().get_span(opening)
    return max(filter(None, (span, model)), key=_start_time, default=None)


def _start_time(span: Span) -> int:
    return getattr(span, "start_time", None) or 0


def innermost_span() -> Span:
    """Return the current span, or that of the LangChain run if it started later."""
    inside = _if_innermost(current_langchain_span())
    return trace.get_current_span() if inside is None else inside


def _is_instrumented(instrumentation: ModuleType) -> bool:
    return bool(instrumentation.LangChainInstrumentor().is_instrumented_by_opentelemetry)


def _if_innermost(candidate: Span | None) -> Span | None:
    """Return the candidate if it is inside the current span: of two ancestors, the later one."""
    if candidate is None or not candidate.is_recording():
        return None
    current = trace.get_current_span()
    if current.is_recording() and _start_time(current) >= _start_time(candidate):
        return None
    return candidate


def _inside_span(span: Span | None) -> AbstractContextManager[Any]:
    inner = _if_innermost(span)
    if inner is None:
        return nullcontext()
    return trace.use_span(
        inner, end_on_exit=False, record_exception=False, set_status_on_exception=False
    )


@contextmanager
def _model_run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[None]:
    """Make a chat model's run current; the client below it adds no second span of the same call."""
    span = _if_innermost(_model_span(args, kwargs))
    if span is None:
        yield
        return
    suppressed = context.set_value(SUPPRESS_LANGUAGE_MODEL_INSTRUMENTATION_KEY, True)
    with use_context(trace.set_span_in_context(span, suppressed)):
        yield


def _model_span(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Span | None:
    """Return the span of a chat model's run; callers pass the run manager."""
    manager = kwargs.get("run_manager") or (args[2] if len(args) > 2 else None)
    instrumentation = sys.modules.get(_LANGCHAIN)
    if manager is None or instrumentation is None or not _is_instrumented(instrumentation):
        return None
    span: Span | None = instrumentation.LangChainInstrumentor().get_span(manager.run_id)
    return span


def _generate(call: Call, model: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    with _model_run(args, kwargs):
        return call(*args, **kwargs)


async def _agenerate(
    call: Callable[..., Awaitable[Any]],
    model: object,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    with _model_run(args, kwargs):
        return await call(*args, **kwargs)


def _create(call: Call, client: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    with _inside_span(current_langchain_span()), openai_http.model_call_context():
        return call(*args, **_without_unset(kwargs))


async def _acreate(
    call: Callable[..., Awaitable[Any]],
    client: object,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    with _inside_span(current_langchain_span()), openai_http.model_call_context():
        return await call(*args, **_without_unset(kwargs))


def _without_unset(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Remove placeholder values: the client's helpers pass them, and instrumentors log them."""
    return {
        name: value for name, value in kwargs.items() if type(value).__name__ not in _UNSET_TYPES
    }


def _wrap_models(module: ModuleType) -> None:
    _wrap(module.__name__, "BaseChatModel._generate_with_cache", _generate)
    _wrap(module.__name__, "BaseChatModel._agenerate_with_cache", _agenerate)
    streams.patch_chat_models(module, _wrap)


def _wrap_clients(module: ModuleType) -> None:
    for target in patches.OPENAI_METHODS:
        path, _, name = target.partition(":")
        _wrap(path, name, _acreate if name.startswith("Async") else _create)


def _wrap(module: str, name: str, wrapper: Call) -> None:
    try:
        wrapt.wrap_function_wrapper(module, name, wrapper)
    except (ImportError, AttributeError) as error:  # another version of the library
        _logger.info("ltrain: %s.%s is not bridged: %s", module, name, error)


SUPPRESS_LANGUAGE_MODEL_INSTRUMENTATION_KEY = "suppress_language_model_instrumentation"
"""OpenLLMetry's context key: where it is set, instrumentors of clients make no spans."""

_CONTENT = "llm.output_messages.0.message.contents.99.message_content."
"""OpenInference's attribute name; the instrumentor itself numbers contents from 0."""
_HIDE_SWITCHES = ("OPENINFERENCE_HIDE_OUTPUTS", "OPENINFERENCE_HIDE_OUTPUT_MESSAGES")
_PARSERS = ("_convert_dict_to_message", "_convert_delta_to_message_chunk")


def patch_langchain_openai() -> None:
    """Record the reasoning of a model, which LangChain's OpenAI models discard, once imported.

    They read neither `reasoning_content` nor `reasoning` of a response, so the run's span does not
    have it, and below a run the client makes no span of its own. The reasoning becomes a content
    of the run's message.
    """
    if not any(os.environ.get(name, "").lower() == "true" for name in _HIDE_SWITCHES):
        wrapt.when_imported("langchain_openai.chat_models.base")(_wrap_model)


def _wrap_model(module: ModuleType) -> None:
    for name in _PARSERS:
        if hasattr(module, name):
            wrapt.wrap_function_wrapper(module, name, _read_response)


def _read_response(
    call: Callable[..., Any], instance: object, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    message = args[0] if args else None
    if isinstance(message, dict):
        reasoning = message.get("reasoning_content") or message.get("reasoning")
        if isinstance(reasoning, str) and reasoning:
            _append_reasoning(reasoning)
    return call(*args, **kwargs)


def _append_reasoning(reasoning: str) -> None:
    """Append to the reasoning on the span of the current run."""
    span = trace.get_current_span()
    if context.get_value(SUPPRESS_LANGUAGE_MODEL_INSTRUMENTATION_KEY) and span.is_recording():
        previous = (getattr(span, "attributes", None) or {}).get(_CONTENT + "text", "")
        span.set_attribute(_CONTENT + "type", "reasoning")
        span.set_attribute(_CONTENT + "text", previous + reasoning)
