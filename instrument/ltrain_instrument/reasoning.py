"""What a model thought, where LangChain's OpenAI models drop it.

They read neither `reasoning_content` nor `reasoning` of an answer, so the run's span cannot say it,
and below a run the client makes no span of its own. It becomes a content of the run's message.
"""

import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

import wrapt
from opentelemetry import context, trace

SUPPRESS_LANGUAGE_MODEL_INSTRUMENTATION_KEY = "suppress_language_model_instrumentation"
"""OpenLLMetry's: no instrumentor of a client makes a span where this is set in the context."""

_CONTENT = "llm.output_messages.0.message.contents.99.message_content."
"""As OpenInference names it; the instrumentor numbers what it writes itself from 0."""
_HIDING = ("OPENINFERENCE_HIDE_OUTPUTS", "OPENINFERENCE_HIDE_OUTPUT_MESSAGES")
_READERS = ("_convert_dict_to_message", "_convert_delta_to_message_chunk")


def install() -> None:
    """Listen where LangChain's OpenAI models read an answer, once they are imported."""
    if not any(os.environ.get(name, "").lower() == "true" for name in _HIDING):
        wrapt.when_imported("langchain_openai.chat_models.base")(_wrap)


def _wrap(module: ModuleType) -> None:
    for name in _READERS:
        if hasattr(module, name):
            wrapt.wrap_function_wrapper(module, name, _read)


def _read(
    call: Callable[..., Any], instance: object, arguments: tuple[Any, ...], named: dict[str, Any]
) -> Any:
    message = arguments[0] if arguments else None
    if isinstance(message, dict):
        thought = message.get("reasoning_content") or message.get("reasoning")
        if isinstance(thought, str) and thought:
            _keep(thought)
    return call(*arguments, **named)


def _keep(thought: str) -> None:
    """Add to what the span of the run that is current here says already."""
    span = trace.get_current_span()
    if context.get_value(SUPPRESS_LANGUAGE_MODEL_INSTRUMENTATION_KEY) and span.is_recording():
        said = (getattr(span, "attributes", None) or {}).get(_CONTENT + "text", "")
        span.set_attribute(_CONTENT + "type", "reasoning")
        span.set_attribute(_CONTENT + "text", said + thought)
