"""The span of one call: who asked, what was sampled with, what came back, token by token.

It ends once; what is said later is lost.
"""

import json
import struct
from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any

from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, StatusCode, Tracer

from ltrain_instrument import attributes
from ltrain_instrument.tokens.answer import Answer, Choice
from ltrain_instrument.tokens.messages import input_messages, output_messages
from ltrain_instrument.tokens.request import Request

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
"""What a span attribute may be."""


class CallSpan:
    """One span, from the request's departure or arrival to the answer's last byte."""

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
        given = {**(identity or {}), **_request_attributes(request)}
        self.span: Span = tracer.start_span(
            f"{request.operation} {request.model}", context, kind, given
        )

    def sampled_by(self, policy: str, version: int | None) -> None:
        """Say which policy answers, and its version where that is known."""
        self.span.set_attribute(attributes.POLICY_NAME, policy)
        if version is not None:
            self.span.set_attribute(attributes.POLICY_VERSION, version)

    def answered(self, answer: Answer) -> None:
        """End it with a whole answer, whose last byte is still to be handed on."""
        self._say(answer)
        self._end(delivered=True)

    def failed(self, kind: str, sentence: str, answer: Answer | None = None) -> None:
        """End it with an error, and with what had been answered until then."""
        if answer is not None:
            self._say(answer)
        self.span.set_attribute("error.type", kind)
        self.span.set_status(StatusCode.ERROR, sentence)
        self._end(delivered=False)

    def truncated(self) -> None:
        """Say that the process ends before the call."""
        self.span.set_attribute(attributes.TRUNCATED, True)

    def _say(self, answer: Answer) -> None:
        self.span.set_attributes(_answer_attributes(answer, self._request.model))

    def _end(self, *, delivered: bool) -> None:
        if not self.ended:
            self.ended = True
            self.span.set_attribute(attributes.DELIVERED, delivered)
            self.span.end()


def _request_attributes(request: Request) -> dict[str, Value]:
    body = request.body
    given: dict[str, Value] = {
        "gen_ai.operation.name": request.operation,
        "gen_ai.provider.name": "vllm",
        "gen_ai.request.model": request.model,
    }
    messages = input_messages(body)
    if messages:
        given["gen_ai.input.messages"] = _json(messages)
    for name, attribute in REQUEST_NUMBERS.items():
        if isinstance(body.get(name), int | float):
            given[attribute] = body[name]
    for name, value in request.overruled.items():
        scalar = isinstance(value, str | int | float)
        given[attributes.ASKED + name] = value if scalar else _json(value)
    if request.choices != 1:
        given["gen_ai.request.choice.count"] = request.choices
    if body.get("stop"):
        stop = body["stop"]
        given["gen_ai.request.stop_sequences"] = [stop] if isinstance(stop, str) else stop
    if body.get("tools"):
        given["gen_ai.tool.definitions"] = _json(body["tools"])
    if request.constrained:
        given[attributes.CONSTRAINED] = True
    return given


def _answer_attributes(answer: Answer, model: str) -> dict[str, Value]:
    choices, prompt = answer.ordered, answer.prompt_token_ids
    given: dict[str, Value] = {"gen_ai.response.model": model}
    if answer.id:
        given["gen_ai.response.id"] = answer.id
    if choices:
        reasons = [choice.finish_reason for choice in choices]
        given["gen_ai.response.finish_reasons"] = [reason for reason in reasons if reason]
        given["gen_ai.output.messages"] = _json(output_messages(choices))
    if prompt is not None:
        given[attributes.PROMPT_TOKEN_IDS] = _json(prompt)
        given[attributes.PROMPT_TOKEN_COUNT] = len(prompt)
    given |= _usage(answer)
    return given | (_sampled_tokens(choices) if any(c.token_ids for c in choices) else {})


def _usage(answer: Answer) -> dict[str, Value]:
    usage = answer.usage or {}
    prompt, sampled = usage.get("prompt_tokens"), usage.get("completion_tokens")
    if prompt is None and answer.prompt_token_ids is not None:
        prompt = len(answer.prompt_token_ids)
        sampled = sum(len(choice.token_ids) for choice in answer.choices.values())
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
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.encode(errors="replace").decode()  # half a surrogate pair cannot be exported
