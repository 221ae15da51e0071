"""The span of one call: identity, sampling parameters, messages and tokens.

It ends once; later calls have no effect.
"""

import json
import struct
from base64 import b64encode
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, StatusCode, Tracer

from ltrain_instrument import attributes
from ltrain_instrument.tokens.request import Request
from ltrain_instrument.tokens.response import Choice, ModelResponse

try:
    import orjson
except ImportError:
    orjson = None  # type: ignore[assignment]

REQUEST_NUMBERS = {
    "temperature": "gen_ai.request.temperature",
    "top_p": "gen_ai.request.top_p",
    "top_k": "gen_ai.request.top_k",
    "min_p": "gen_ai.request.min_p",
    "presence_penalty": "gen_ai.request.presence_penalty",
    "frequency_penalty": "gen_ai.request.frequency_penalty",
    "repetition_penalty": "gen_ai.request.repetition_penalty",
    "max_tokens": "gen_ai.request.max_tokens",
    "max_completion_tokens": "gen_ai.request.max_tokens",
    "seed": "gen_ai.request.seed",
}

Value = str | bool | int | float | Sequence[str]
"""Types of a span attribute."""


class CallSpan:
    """One span, from the start of the request to the last byte of the response."""

    def __init__(
        self,
        tracer: Tracer,
        context: Context,
        kind: SpanKind,
        request: Request,
        identity: Mapping[str, Value] | None = None,
    ) -> None:
        self.ended = False
        self._request = request
        values = {**(identity or {}), **_request_attributes(request)}
        self.span: Span = tracer.start_span(
            f"{request.operation} {request.model}", context, kind, values
        )

    def set_policy(self, policy: str, version: int | None) -> None:
        """Set the policy that answers, and its version if it is known."""
        self.span.set_attribute(attributes.POLICY_NAME, policy)
        if version is not None:
            self.span.set_attribute(attributes.POLICY_VERSION, version)

    def mark_constrained(self, constraint: str = "") -> None:
        """Record that the server masked ids, and its grammar if the masks can be computed again."""
        self.span.set_attribute(attributes.CONSTRAINED, True)
        if constraint and not self._request.favoured:
            self.span.set_attribute(attributes.CONSTRAINT, constraint)

    def end_with_response(self, response: ModelResponse) -> None:
        """End the span with a complete response, whose last byte is not passed on yet."""
        self._set_response(response)
        self._end(delivered=True)

    def end_with_error(
        self, kind: str, sentence: str, response: ModelResponse | None = None
    ) -> None:
        """End the span with an error, and with the response received so far."""
        if response is not None:
            self._set_response(response)
        self.span.set_attribute("error.type", kind)
        self.span.set_status(StatusCode.ERROR, sentence)
        self._end(delivered=False)

    def mark_truncated(self) -> None:
        """Record that the process exits before the call ends."""
        self.span.set_attribute(attributes.TRUNCATED, True)

    def _set_response(self, response: ModelResponse) -> None:
        self.span.set_attributes(_response_attributes(response, self._request.model))

    def _end(self, *, delivered: bool) -> None:
        if not self.ended:
            self.ended = True
            self.span.set_attribute(attributes.DELIVERED, delivered)
            self.span.end()


def _request_attributes(request: Request) -> dict[str, Value]:
    body = request.body
    values: dict[str, Value] = {
        "gen_ai.operation.name": request.operation,
        "gen_ai.provider.name": request.provider,
        "gen_ai.request.model": request.model,
    }
    messages = input_messages(body)
    if messages:
        values["gen_ai.input.messages"] = _json(messages)
    for name, attribute in REQUEST_NUMBERS.items():
        if isinstance(body.get(name), int | float):
            values[attribute] = body[name]
    for name, value in request.overridden.items():
        scalar = isinstance(value, str | int | float)
        values[attributes.ASKED + name] = value if scalar else _json(value)
    if request.choices != 1:
        values["gen_ai.request.choice.count"] = request.choices
    if body.get("stop"):
        stop = body["stop"]
        values["gen_ai.request.stop_sequences"] = [stop] if isinstance(stop, str) else stop
    if body.get("tools"):
        values["gen_ai.tool.definitions"] = _json(body["tools"])
    if request.constrained:
        values[attributes.CONSTRAINED] = True
    return values


def _response_attributes(response: ModelResponse, model: str) -> dict[str, Value]:
    choices, prompt = response.ordered_choices, response.prompt_token_ids
    values: dict[str, Value] = {"gen_ai.response.model": model}
    if response.id:
        values["gen_ai.response.id"] = response.id
    if choices:
        reasons = [choice.finish_reason for choice in choices]
        values["gen_ai.response.finish_reasons"] = [reason for reason in reasons if reason]
        values["gen_ai.output.messages"] = _json(output_messages(choices))
    if prompt is not None:
        values[attributes.PROMPT_TOKEN_IDS] = _json(prompt)
        values[attributes.PROMPT_TOKEN_COUNT] = len(prompt)
    values |= _usage(response)
    return values | (_sampled_tokens(choices) if any(c.token_ids for c in choices) else {})


def _usage(response: ModelResponse) -> dict[str, Value]:
    usage = response.usage or {}
    prompt, sampled = usage.get("prompt_tokens"), usage.get("completion_tokens")
    if prompt is None and response.prompt_token_ids is not None:
        prompt = len(response.prompt_token_ids)
        sampled = response.sampled
    counts = {
        "gen_ai.usage.input_tokens": prompt,
        "gen_ai.usage.output_tokens": sampled,
        "gen_ai.usage.cache_read.input_tokens": _detail(usage, "prompt", "cached_tokens"),
        "gen_ai.usage.reasoning.output_tokens": _detail(usage, "completion", "reasoning_tokens"),
    }
    return {name: count for name, count in counts.items() if count is not None}


def _detail(usage: Mapping[str, Any], kind: str, name: str) -> int | None:
    details = usage.get(f"{kind}_tokens_details")
    count = details.get(name) if isinstance(details, dict) else None
    return count if isinstance(count, int) else None


def _sampled_tokens(choices: list[Choice]) -> dict[str, Value]:
    ids = [choice.token_ids for choice in choices]
    logprobs = [_floats(choice.logprobs) for choice in choices]
    one = len(choices) == 1
    return {
        attributes.RESPONSE_TOKEN_IDS: _json(ids[0] if one else ids),
        attributes.RESPONSE_LOGPROBS: logprobs[0] if one else _json(logprobs),
        attributes.RESPONSE_TOKEN_COUNT: sum(map(len, ids)),
    }


def _floats(values: list[float]) -> str:
    return b64encode(struct.pack(f"<{len(values)}f", *values)).decode()


def _json(value: Any) -> str:
    """Return JSON; orjson, which an agent need not have, is twenty times faster for ids."""
    if orjson is not None:
        with suppress(TypeError):  # a lone surrogate, or an integer beyond 64 bits
            return orjson.dumps(value).decode()
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.encode(errors="replace").decode()  # a lone surrogate cannot be exported


Message = dict[str, Any]


def input_messages(body: Message) -> list[Message]:
    """Return a request's messages; a text prompt is a user's message, token ids give none."""
    prompt = body.get("prompt")
    messages = body.get("messages") or [{"role": "user", "content": prompt}]
    if isinstance(prompt, list):
        messages = []
    return [{"role": each.get("role"), "parts": _parts(each)} for each in messages]


def output_messages(choices: list[Choice]) -> list[Message]:
    """Return one message per choice."""
    return [
        {
            "role": choice.message.get("role") or "assistant",
            "parts": _parts(choice.message),
            "finish_reason": choice.finish_reason,
        }
        for choice in choices
    ]


def _parts(message: Message) -> list[Message]:
    if message.get("role") == "tool":
        response = {"id": message.get("tool_call_id"), "response": message.get("content")}
        return [{"type": "tool_call_response", **response}]
    reasoning = message.get("reasoning") or message.get("reasoning_content")
    parts = [{"type": "reasoning", "content": reasoning}] if reasoning else []
    parts += _content(message.get("content"))
    if message.get("refusal"):
        parts.append({"type": "refusal", "content": message["refusal"]})
    return parts + [_call(call) for call in message.get("tool_calls") or ()]


def _content(content: Any) -> list[Message]:
    if isinstance(content, str):
        return [{"type": "text", "content": content}] if content else []
    return [_part(part) for part in content or ()]


def _part(part: Any) -> Message:
    if isinstance(part, dict) and part.get("type") == "text":
        return {"type": "text", "content": part.get("text")}
    return part if isinstance(part, dict) else {"type": "text", "content": str(part)}


def _call(call: Message) -> Message:
    function = call.get("function") or {}
    function_fields = {"id": call.get("id"), "name": function.get("name")}
    return {"type": "tool_call", **function_fields, "arguments": function.get("arguments")}
