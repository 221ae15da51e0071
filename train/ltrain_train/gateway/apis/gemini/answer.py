"""A chat completion as content of Gemini's API, complete or as a stream of events."""

from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Any

import orjson

from ltrain_instrument.tokens import Request
from ltrain_train.gateway.apis.api import encode_event
from ltrain_train.gateway.apis.body import JsonObject
from ltrain_train.gateway.apis.converted_answer import TextKind, WholeCallsAnswer
from ltrain_train.gateway.apis.gemini.content import keep_reasoning
from ltrain_train.gateway.apis.response_fields import error_message

FINISH_REASONS = {"length": "MAX_TOKENS", "content_filter": "SAFETY"}
"""Why a candidate ended, by the chat's `finish_reason`; any other is `STOP`."""
STATUSES: dict[int, str] = {
    HTTPStatus.UNAUTHORIZED: "UNAUTHENTICATED",
    HTTPStatus.FORBIDDEN: "PERMISSION_DENIED",
    HTTPStatus.NOT_FOUND: "NOT_FOUND",
    HTTPStatus.TOO_MANY_REQUESTS: "RESOURCE_EXHAUSTED",
    HTTPStatus.BAD_GATEWAY: "UNAVAILABLE",
    HTTPStatus.SERVICE_UNAVAILABLE: "UNAVAILABLE",
}
"""Google's name of a status; else `INVALID_ARGUMENT`, or from 500 on `INTERNAL`."""


class GeminiAnswer(WholeCallsAnswer):
    """Builds the parts of the candidate. Those of calls come last, with all their arguments."""

    def __init__(self, request: Request, shows_thoughts: bool = False) -> None:
        super().__init__(request)
        self._shows_thoughts = shows_thoughts
        self._parts: list[JsonObject] = []
        self._thoughts = ""
        self._signed = False
        """Whether a part has the thoughts as its signature."""

    def begin(self, chat: Mapping[str, Any]) -> Iterator[bytes]:
        """Yield nothing: each event of the API is complete."""
        yield from ()

    def add_text(self, kind: TextKind, text: str, logprobs: list[Any]) -> Iterator[bytes]:
        """Extend the open part, or open one."""
        part: JsonObject = {"text": text}
        if kind == "reasoning":
            self._thoughts += text
            part["thought"] = True
        else:
            part |= self._signature()
        if kind == "text" or self._shows_thoughts:
            if self._parts and self._parts[-1].get("thought") == part.get("thought"):
                self._parts[-1]["text"] += text
            else:
                self._parts.append(dict(part))
            yield self._event([part])

    def close_parts(self) -> Iterator[bytes]:
        """Write the calls."""
        calls = [
            {
                "functionCall": {"id": call.id, "name": call.name, "args": call.arguments},
                **self._signature(),
            }
            for call in self.calls
        ]
        self._parts += calls
        if calls:
            yield self._event(calls)

    def finish(self) -> Iterator[bytes]:
        """Yield why the candidate ended, with the usage."""
        yield encode_event(orjson.dumps(self._response([], self._finish_reason)))

    def whole(self) -> JsonObject:
        """Return the response."""
        return self._response(self._parts, self._finish_reason)

    def error(self, status: int, body: bytes) -> bytes:
        """Return the event of an error, as Google's clients read it."""
        return encode_event(gemini_error(status, body))

    def error_body(self, status: int, body: bytes) -> bytes:
        """Return the body of an error, as Google's clients read it."""
        return gemini_error(status, body)

    @property
    def _finish_reason(self) -> str:
        return FINISH_REASONS.get(self.finish_reason or "", "STOP")

    def _signature(self) -> JsonObject:
        """Return the signature for the first part after the thoughts."""
        if self._signed or not self._thoughts:
            return {}
        self._signed = True
        return {"thoughtSignature": keep_reasoning(self._thoughts)}

    def _event(self, parts: list[JsonObject]) -> bytes:
        return encode_event(orjson.dumps(self._response(parts)))

    def _response(self, parts: list[JsonObject], reason: str | None = None) -> JsonObject:
        candidate: JsonObject = {"index": 0, "content": {"role": "model", "parts": parts}}
        response: JsonObject = {"candidates": [candidate]}
        if reason is not None:
            candidate["finishReason"] = reason
            response["usageMetadata"] = _usage(self.usage)
        return {**response, "modelVersion": self.model, "responseId": self.chat_id}


def _usage(usage: Mapping[str, Any]) -> JsonObject:
    prompt, sampled = usage.get("prompt_tokens") or 0, usage.get("completion_tokens") or 0
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    thoughts = (usage.get("completion_tokens_details") or {}).get("reasoning_tokens") or 0
    return {
        "promptTokenCount": prompt,
        "cachedContentTokenCount": cached,
        "candidatesTokenCount": sampled - thoughts,
        "thoughtsTokenCount": thoughts,
        "totalTokenCount": prompt + sampled,
    }


def gemini_error(status: int, body: bytes) -> bytes:
    """Return the body of an error response in the form of Google's APIs.

    Args:
        body: the response in another form: of OpenAI's APIs, or any text.
    """
    kind = "INVALID_ARGUMENT" if status < HTTPStatus.INTERNAL_SERVER_ERROR else "INTERNAL"
    error = {"code": int(status), "message": error_message(body)}
    return orjson.dumps({"error": {**error, "status": STATUSES.get(status, kind)}})
