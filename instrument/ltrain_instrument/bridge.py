"""Brings the spans of LangChain and of the OpenAI client into one trace.

OpenInference's LangChain tracer never makes its spans current, so the client's spans would hang on
whatever span surrounds the agent, or start a trace of their own. Here the innermost LangChain run
is made current for the length of a model call.
"""

import logging
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import ModuleType
from typing import Any

import wrapt
from opentelemetry import context, trace
from opentelemetry.trace import Span

from ltrain_instrument import capture, reasoning, streams, traceloop, wire
from ltrain_instrument.reasoning import SUPPRESS_LANGUAGE_MODEL_INSTRUMENTATION_KEY

_LANGCHAIN = "openinference.instrumentation.langchain"
_RUNS = "langchain_core.runnables.config"
"""Where a run is to be found; unless the agent imports it there are none."""
_CLIENTS = (
    ("openai.resources.chat.completions.completions", "Completions", ("create", "parse")),
    ("openai.resources.completions", "Completions", ("create",)),
    ("openai.resources.responses.responses", "Responses", ("create", "parse")),
    ("openai.resources.embeddings", "Embeddings", ("create",)),
)

_NOTHING = ("Omit", "NotGiven")

_logger = logging.getLogger("ltrain.bridge")

Call = Callable[..., Any]


def install() -> None:
    """Wrap LangChain's models and OpenAI's client, once they are imported.

    It runs after the instrumentors, so that these wrappers are outside theirs; not under another
    distro, which calls every hook that is installed.
    """
    if capture.current() is None:
        return
    wrapt.when_imported("langchain_core.language_models.chat_models")(_wrap_models)
    wrapt.when_imported("openai.resources")(_wrap_clients)
    traceloop.install()
    reasoning.install()
    wire.install()


def langchain_span() -> Span | None:
    """Give the span of the LangChain run that the caller is in; None outside of any."""
    instrumentation = sys.modules.get(_LANGCHAIN)
    if instrumentation is None or _RUNS not in sys.modules or not _instrumented(instrumentation):
        return None
    span: Span | None = instrumentation.get_current_span()
    opening = streams.opening()
    if opening is None:
        return span
    model: Span | None = instrumentation.LangChainInstrumentor().get_span(opening)
    return max(filter(None, (span, model)), key=_began, default=None)


def _began(span: Span) -> int:
    return getattr(span, "start_time", None) or 0


def innermost_span() -> Span:
    """Give the current span, or the LangChain run's where that began later."""
    inside = _inner(langchain_span())
    return trace.get_current_span() if inside is None else inside


def _instrumented(instrumentation: ModuleType) -> bool:
    return bool(instrumentation.LangChainInstrumentor().is_instrumented_by_opentelemetry)


def _inner(candidate: Span | None) -> Span | None:
    """Give the candidate if it is inside the current span: of two ancestors, the later one is."""
    if candidate is None or not candidate.is_recording():
        return None
    current = trace.get_current_span()
    if current.is_recording() and _began(current) >= _began(candidate):
        return None
    return candidate


def _inside(span: Span | None) -> AbstractContextManager[Any]:
    inner = _inner(span)
    if inner is None:
        return nullcontext()
    return trace.use_span(
        inner, end_on_exit=False, record_exception=False, set_status_on_exception=False
    )


@contextmanager
def _model_run(arguments: tuple[Any, ...], named: dict[str, Any]) -> Iterator[None]:
    """Have a chat model's run current; the client below it adds no second span of the same call."""
    span = _inner(_model_span(arguments, named))
    if span is None:
        yield
        return
    quiet = context.set_value(SUPPRESS_LANGUAGE_MODEL_INSTRUMENTATION_KEY, True)
    token = context.attach(trace.set_span_in_context(span, quiet))
    try:
        yield
    finally:
        context.detach(token)


def _model_span(arguments: tuple[Any, ...], named: dict[str, Any]) -> Span | None:
    """Give the span of a chat model's run, which its callers announce by a run manager."""
    manager = named.get("run_manager") or (arguments[2] if len(arguments) > 2 else None)
    instrumentation = sys.modules.get(_LANGCHAIN)
    if manager is None or instrumentation is None or not _instrumented(instrumentation):
        return None
    span: Span | None = instrumentation.LangChainInstrumentor().get_span(manager.run_id)
    return span


def _generate(call: Call, model: object, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    with _model_run(arguments, named):
        return call(*arguments, **named)


async def _agenerate(
    call: Callable[..., Awaitable[Any]],
    model: object,
    arguments: tuple[Any, ...],
    named: dict[str, Any],
) -> Any:
    with _model_run(arguments, named):
        return await call(*arguments, **named)


def _create(call: Call, client: object, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    with _inside(langchain_span()), wire.model_call():
        return call(*arguments, **_given(named))


async def _acreate(
    call: Callable[..., Awaitable[Any]],
    client: object,
    arguments: tuple[Any, ...],
    named: dict[str, Any],
) -> Any:
    with _inside(langchain_span()), wire.model_call():
        return await call(*arguments, **_given(named))


def _given(named: dict[str, Any]) -> dict[str, Any]:
    """Leave out what stands for nothing: the client's own helpers pass it, instrumentors log it."""
    return {name: it for name, it in named.items() if type(it).__name__ not in _NOTHING}


def _wrap_models(module: ModuleType) -> None:
    _wrap(module.__name__, "BaseChatModel._generate_with_cache", _generate)
    _wrap(module.__name__, "BaseChatModel._agenerate_with_cache", _agenerate)
    streams.wrap_models(module, _wrap)


def _wrap_clients(module: ModuleType) -> None:
    for path, name, methods in _CLIENTS:
        for method in methods:
            _wrap(path, f"{name}.{method}", _create)
            _wrap(path, f"Async{name}.{method}", _acreate)


def _wrap(module: str, name: str, wrapper: Call) -> None:
    try:
        wrapt.wrap_function_wrapper(module, name, wrapper)
    except (ImportError, AttributeError) as error:  # another version of the library
        _logger.info("ltrain: %s.%s is not bridged: %s", module, name, error)
