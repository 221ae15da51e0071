"""A chat completion as a message of Anthropic's API, complete or as a stream of events."""

from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Any

import orjson

from ltrain_instrument.tokens import Request
from ltrain_train.gateway.apis.api import encode_event
from ltrain_train.gateway.apis.converted_answer import TextKind, WholeCallsAnswer
from ltrain_train.gateway.apis.response_fields import error_message

Block = dict[str, Any]

STOP_REASONS = {"length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}
"""Why a message ended, by the chat's `finish_reason`; any other is `end_turn`."""
TEXT_TYPES: dict[TextKind, str] = {"reasoning": "thinking", "text": "text"}
"""The type of a block of text, and the name of the field that has the text."""
ERROR_TYPES: dict[int, str] = {
    HTTPStatus.UNAUTHORIZED: "authentication_error",
    HTTPStatus.FORBIDDEN: "permission_error",
    HTTPStatus.NOT_FOUND: "not_found_error",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "request_too_large",
    HTTPStatus.TOO_MANY_REQUESTS: "rate_limit_error",
}
"""The type of an error by its status; else `invalid_request_error`, or from 500 on `api_error`."""


class MessagesAnswer(WholeCallsAnswer):
    """Builds the blocks of the message. Those of calls come last, with all their arguments."""

    def __init__(self, request: Request) -> None:
        super().__init__(request)
        self._blocks: list[Block] = []
        self._text: Block | None = None
        """The block of text that the stream extends."""

    def begin(self, chat: Mapping[str, Any]) -> Iterator[bytes]:
        """Yield the event with the empty message."""
        usage = {"input_tokens": len(chat.get("prompt_token_ids") or ()), "output_tokens": 0}
        stop = {"stop_reason": None, "stop_sequence": None}
        message = self.whole() | stop | {"content": [], "usage": usage}
        yield _event("message_start", message=message)

    def add_text(self, kind: TextKind, text: str, logprobs: list[Any]) -> Iterator[bytes]:
        """Extend the open block, or open one; the API has no log-probabilities."""
        name = TEXT_TYPES[kind]
        if self._text is None or self._text["type"] != name:
            yield from self._close_text()
            self._text = {"type": name, name: ""}
            if kind == "reasoning":
                self._text["signature"] = ""
            yield self._start(self._text)
        self._text[name] += text
        yield self._delta({"type": f"{name}_delta", name: text})

    def close_parts(self) -> Iterator[bytes]:
        """End the block of text, and write the calls."""
        yield from self._close_text()
        for call in self.calls:
            block: Block = {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}
            yield self._start(block)
            block["input"] = arguments = call.arguments
            partial = orjson.dumps(arguments).decode()
            yield self._delta({"type": "input_json_delta", "partial_json": partial})
            yield self._end_block()

    def finish(self) -> Iterator[bytes]:
        """Yield why the message ended, with the usage."""
        whole = self.whole()
        delta = {name: whole[name] for name in ("stop_reason", "stop_sequence")}
        yield _event("message_delta", delta=delta, usage=whole["usage"])
        yield _event("message_stop")

    def whole(self) -> dict[str, Any]:
        """Return the message."""
        prompt = self.usage.get("prompt_tokens") or 0
        cached = (self.usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        return {
            "id": self.chat_id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": self._blocks,
            "stop_reason": self._stop_reason,
            "stop_sequence": self.stop_sequence,
            "usage": {
                "input_tokens": prompt - cached,
                "cache_read_input_tokens": cached,
                "cache_creation_input_tokens": 0,
                "output_tokens": self.usage.get("completion_tokens") or 0,
            },
        }

    def error(self, status: int, body: bytes) -> bytes:
        """Return the event of an error, as Anthropic's clients read it."""
        return encode_event(message_error(status, body), "error")

    def error_body(self, status: int, body: bytes) -> bytes:
        """Return the body of an error, as Anthropic's clients read it."""
        return message_error(status, body)

    @property
    def _stop_reason(self) -> str:
        if self.stop_sequence is not None:
            return "stop_sequence"
        reason = STOP_REASONS.get(self.finish_reason or "", "end_turn")
        return "tool_use" if self._calls and reason == "end_turn" else reason

    def _close_text(self) -> Iterator[bytes]:
        if self._text is not None:
            self._text = None
            yield self._end_block()

    def _start(self, block: Block) -> bytes:
        self._blocks.append(block)
        return _event("content_block_start", index=len(self._blocks) - 1, content_block=block)

    def _delta(self, delta: Block) -> bytes:
        return _event("content_block_delta", index=len(self._blocks) - 1, delta=delta)

    def _end_block(self) -> bytes:
        return _event("content_block_stop", index=len(self._blocks) - 1)


def _event(kind: str, **fields: Any) -> bytes:
    return encode_event(orjson.dumps({"type": kind, **fields}), kind)


def message_error(status: int, body: bytes) -> bytes:
    """Return the body of an error response in the form of Anthropic's API.

    Args:
        body: the response in another form: of OpenAI's APIs, or any text.
    """
    kind = "invalid_request_error" if status < HTTPStatus.INTERNAL_SERVER_ERROR else "api_error"
    error = {"type": ERROR_TYPES.get(status, kind), "message": error_message(body)}
    return orjson.dumps({"type": "error", "error": error})
