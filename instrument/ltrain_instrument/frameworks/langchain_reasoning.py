"""Records a model's reasoning, which LangChain's OpenAI models discard.

They read neither `reasoning_content` nor `reasoning` of a response, so the run's span does not have
it, and below a run the client makes no span of its own. The reasoning becomes a content of the
run's message.
"""

import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

import wrapt
from opentelemetry import context, trace

SUPPRESS_LANGUAGE_MODEL_INSTRUMENTATION_KEY = "suppress_language_model_instrumentation"
"""OpenLLMetry's context key: where it is set, instrumentors of clients make no spans."""

_CONTENT = "llm.output_messages.0.message.contents.99.message_content."
"""OpenInference's attribute name; the instrumentor itself numbers contents from 0."""
_HIDE_SWITCHES = ("OPENINFERENCE_HIDE_OUTPUTS", "OPENINFERENCE_HIDE_OUTPUT_MESSAGES")
_PARSERS = ("_convert_dict_to_message", "_convert_delta_to_message_chunk")


def patch_langchain_openai() -> None:
    """Wrap the functions with which LangChain's OpenAI models parse a response, once imported."""
    if not any(os.environ.get(name, "").lower() == "true" for name in _HIDE_SWITCHES):
        wrapt.when_imported("langchain_openai.chat_models.base")(_wrap)


def _wrap(module: ModuleType) -> None:
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
