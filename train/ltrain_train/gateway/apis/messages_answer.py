"""A chat completion as a message of Anthropic's API, complete or as a stream of events."""

from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from ltrain_instrument.tokens import Request
from ltrain_train.gateway.apis.api import encode_event
from ltrain_train.gateway.apis.response_fields import replace_fields

Block = dict[str, Any]

STOP_REASONS = {"length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}
"""Why a message ended, by the chat's `finish_reason`; any other is `end_turn`."""
TEXT_FIELDS = {"thinking": "thinking", "text": "text"}
"""The field of a block's text, by the block's type."""


class MessagesAnswer:
    """Builds the blocks of the message from that of the chat, or from its deltas."""

    def __init__(self, request: Request) -> None:
        self._model = request.model
        self._head: dict[str, Any] = {}
        self._blocks: list[Block] = []
        self._text: Block | None = None
        """The block of text that the stream extends."""
        self._calls: dict[int, dict[str, Any]] = {}
        """The function calls by their index in the chat; their blocks come last, complete."""
        self._usage: Mapping[str, Any] = {}
        self._finish_reason: str | None = None
        self._stop_sequence: str | None = None

    def complete(self, body: bytes) -> tuple[dict[str, Any], bytes]:
        """Return the chat completion, and the message as JSON."""
        chat, _ = replace_fields(body, {})
        self._add_head(chat)
        for choice in chat.get("choices") or ():
            delta = dict(choice.get("message") or {})
            calls = delta.get("tool_calls") or ()
            delta["tool_calls"] = [{**call, "index": number} for number, call in enumerate(calls)]
            list(self._add_choice({**choice, "delta": delta}))
        list(self._close())
        message = self._message(self._blocks) | self._stop | {"usage": self._usage_of_message()}
        return chat, orjson.dumps(message)

    def chunk(self, data: bytes) -> tuple[dict[str, Any], bytes]:
        """Return the chunk of the chat, and the events of the message."""
        chat, _ = replace_fields(data, {})
        events = []
        if not self._head:
            self._add_head(chat)
            usage = {"input_tokens": len(chat.get("prompt_token_ids") or ()), "output_tokens": 0}
            events.append(_event("message_start", message=self._message([]) | {"usage": usage}))
        self._add_head(chat)
        for choice in chat.get("choices") or ():
            events += self._add_choice(choice)
        return chat, b"".join(events)

    def end(self) -> bytes:
        """Return the events that end the blocks and the message."""
        closing = b"".join(self._close())
        delta = _event("message_delta", delta=self._stop, usage=self._usage_of_message())
        return closing + delta + _event("message_stop")

    def error(self, body: bytes) -> bytes:
        """Return the event of an error."""
        error = orjson.loads(body)["error"]
        return _event("error", error={"type": error["type"], "message": error["message"]})

    def _message(self, blocks: list[Block]) -> dict[str, Any]:
        message = {"id": str(self._head.get("id")), "type": "message", "role": "assistant"}
        stop = {"stop_reason": None, "stop_sequence": None}
        return {**message, "model": self._model, "content": blocks, **stop}

    @property
    def _stop(self) -> dict[str, Any]:
        reason = STOP_REASONS.get(self._finish_reason or "", "end_turn")
        if self._calls and reason == "end_turn":
            reason = "tool_use"
        if self._stop_sequence is not None:
            reason = "stop_sequence"
        return {"stop_reason": reason, "stop_sequence": self._stop_sequence}

    def _usage_of_message(self) -> dict[str, Any]:
        prompt = self._usage.get("prompt_tokens") or 0
        cached = (self._usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        return {
            "input_tokens": prompt - cached,
            "cache_read_input_tokens": cached,
            "cache_creation_input_tokens": 0,
            "output_tokens": self._usage.get("completion_tokens") or 0,
        }

    def _add_head(self, chat: Mapping[str, Any]) -> None:
        self._head = self._head or {"id": chat.get("id")}
        self._usage = chat.get("usage") or self._usage

    def _add_choice(self, choice: Mapping[str, Any]) -> Iterator[bytes]:
        delta = choice.get("delta") or {}
        if text := delta.get("reasoning") or delta.get("reasoning_content"):
            yield from self._add_text("thinking", text)
        if text := delta.get("content") or delta.get("refusal"):
            yield from self._add_text("text", text)
        for call in delta.get("tool_calls") or ():
            self._add_call(call)
        self._finish_reason = choice.get("finish_reason") or self._finish_reason
        if isinstance(choice.get("stop_reason"), str):  # vLLM's name of the text that matched
            self._stop_sequence = choice["stop_reason"]

    def _add_text(self, kind: str, text: str) -> Iterator[bytes]:
        if self._text is None or self._text["type"] != kind:
            yield from self._close_text()
            self._text = {"type": kind, TEXT_FIELDS[kind]: ""}
            if kind == "thinking":
                self._text["signature"] = ""
            yield self._start(self._text)
        field = TEXT_FIELDS[kind]
        self._text[field] += text
        yield self._delta({"type": f"{kind}_delta", field: text})

    def _add_call(self, delta: Mapping[str, Any]) -> None:
        function = delta.get("function") or {}
        index = delta.get("index", len(self._calls))
        call = self._calls.setdefault(index, {"id": None, "name": None, "arguments": ""})
        call["id"] = delta.get("id") or call["id"]
        call["name"] = function.get("name") or call["name"]
        call["arguments"] += function.get("arguments") or ""

    def _close(self) -> Iterator[bytes]:
        yield from self._close_text()
        for index in sorted(self._calls):
            call = self._calls[index]
            arguments = _arguments(call["arguments"])
            block = {"type": "tool_use", "id": call["id"], "name": call["name"], "input": {}}
            yield self._start(block)
            partial = orjson.dumps(arguments).decode()
            yield self._delta({"type": "input_json_delta", "partial_json": partial})
            block["input"] = arguments
            yield self._end_block()

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


def _arguments(text: str) -> dict[str, Any]:
    """Return the arguments of a call; the API has only objects, so any other text is inside one."""
    try:
        arguments = orjson.loads(text or "{}")
    except orjson.JSONDecodeError:
        arguments = None
    return arguments if isinstance(arguments, dict) else {"arguments": text}


def _event(kind: str, **fields: Any) -> bytes:
    return encode_event(orjson.dumps({"type": kind, **fields}), kind)
