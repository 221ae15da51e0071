"""Requests, responses and usage of model APIs, which platforms write as JSON into one attribute."""

import json
from collections.abc import Mapping
from typing import Any

from ltrain_transforms.dialects import chat, openinference
from ltrain_transforms.dialects.partial import Parameters, Partial, as_text, non_empty
from ltrain_transforms.traces import INTEGER_LIMIT, Span, parse_json

INPUT = ("input_tokens", "prompt_tokens", "input")
OUTPUT = ("output_tokens", "completion_tokens", "output")
REASONING = (
    *("reasoning_tokens", "reasoning", "output_reasoning_tokens", "output_reasoning"),
    "completion_reasoning_tokens",
)
CACHED = (
    *("cached_tokens", "cache_read", "cache_read_input_tokens", "input_cached_tokens"),
    *("input_cache_read", "prompt_cached_tokens", "cached_input_tokens"),
)
"""Names of counts by OpenAI, Anthropic, LangChain, Langfuse and Braintrust."""


def request_fields(span: Span, attribute: str) -> Partial:
    """Return messages, tools, sampling parameters and model of a request."""
    request = as_object(span.json(attribute))
    return non_empty(
        model=as_text(request.get("model")),
        params=sampling(request),
        tools=definitions(request.get("tools")),
        input_messages=chat.chat_messages(attribute, span.get(attribute), "user"),
    )


def response_fields(span: Span, attribute: str) -> Partial:
    """Return messages, finish reason, id, model and usage of a response."""
    response = as_object(span.json(attribute))
    messages = chat.chat_messages(attribute, span.get(attribute), "assistant")
    reasons = (message.finish_reason for message in messages.messages) if messages else ()
    return usage_fields(response.get("usage")) | non_empty(
        model=as_text(response.get("model")),
        response_id=as_text(response.get("id")),
        finish_reason=next((reason for reason in reasons if reason), None),
        output_messages=messages,
    )


def usage_fields(usage: Any) -> Partial:
    """Return the counts of tokens; details may be in objects of their own."""
    counts = as_object(usage)
    for details in list(counts.values()):
        counts = {**as_object(details), **counts}
    return non_empty(
        input_tokens=_first(counts, *INPUT),
        output_tokens=_first(counts, *OUTPUT),
        reasoning_tokens=_first(counts, *REASONING),
        cached_tokens=_first(counts, *CACHED),
    )


def sampling(values: Mapping[str, Any]) -> Parameters | None:
    """Return the sampling parameters among the values of a request."""
    return Parameters.from_values(
        {name: value for name, value in values.items() if name in openinference.SAMPLING}
    )


def definitions(tools: Any) -> str | None:
    """Return the tool definitions of a request as a JSON list."""
    return as_json(tools) if isinstance(tools, list) and tools else None


def as_json(value: Any) -> str:
    """Return a value as JSON."""
    return json.dumps(value, ensure_ascii=False)


def unquoted(text: str | None) -> str | None:
    """Return the text of a JSON string; other text unchanged."""
    value = parse_json(text)
    return value if isinstance(value, str) else text


def as_object(value: Any) -> dict[str, Any]:
    """Return a JSON object; an empty one for another value."""
    return value if isinstance(value, dict) else {}


def _first(counts: Mapping[str, Any], *names: str) -> int | None:
    values = (counts.get(name) for name in names)
    return next((n for n in values if type(n) is int and 0 <= n < INTEGER_LIMIT), None)
