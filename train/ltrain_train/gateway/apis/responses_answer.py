"""A chat completion as a response of OpenAI's Responses API, complete or as a stream of events."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import orjson

from ltrain_instrument.tokens import Request
from ltrain_train.gateway.apis.api import encode_event
from ltrain_train.gateway.apis.converted_answer import ConvertedAnswer, TextKind
from ltrain_train.gateway.apis.responses_calls import FUNCTION, CallKind
from ltrain_train.gateway.apis.responses_input import keep_reasoning
from ltrain_train.gateway.apis.responses_tools import ClientTool, ResponsesTools

Item = dict[str, Any]

LOGPROBS = "message.output_text.logprobs"
"""The value of `include` that requests log-probabilities."""
REASONING = "reasoning.encrypted_content"
"""The value of `include` of clients that may return reasoning in this form only."""
CUT_REASONS = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""Why a response is incomplete, by the chat's `finish_reason`."""
ECHOED = ("instructions", "max_output_tokens", "temperature", "top_p", "reasoning", "user")
"""Fields of the request that its response repeats."""
ITEM_TYPES: dict[TextKind, str] = {"reasoning": "reasoning", "text": "message"}
PART_TYPES: dict[TextKind, str] = {"reasoning": "reasoning_text", "text": "output_text"}


@dataclass(slots=True)
class _OpenCall:
    """A call that the stream extends."""

    tool: ClientTool
    id: str | None
    arguments: str = ""
    item: Item | None = None
    """Its item, once it has been sent."""


class ResponsesAnswer(ConvertedAnswer):
    """Builds the items of the response."""

    def __init__(
        self, request: Request, requested: Mapping[str, Any], tools: ResponsesTools
    ) -> None:
        super().__init__(request)
        self._requested, self._tools = requested, tools
        self._wants_logprobs = LOGPROBS in (requested.get("include") or ())
        self._keeps_reasoning = REASONING in (requested.get("include") or ())
        self._items: list[Item] = []
        self._text: Item | None = None
        """The item of text that the stream extends."""
        self._calls: dict[int, _OpenCall] = {}
        """The calls by their index in the chat."""
        self._events = 0
        self.state: Mapping[str, Any] = {"previous_response_id": None, "store": False}
        """The fields about what the gateway keeps."""
        self.keep: Callable[[bytes], object] = len
        """Is called with the whole response."""

    def complete(self, body: bytes) -> tuple[dict[str, Any], bytes]:
        """Return the chat completion, and the response."""
        chat, response = super().complete(body)
        self.keep(response)
        return chat, response

    def begin(self, chat: Mapping[str, Any]) -> Iterator[bytes]:
        """Yield the events with the empty response."""
        empty: Item = {"status": "in_progress", "output": [], "usage": None}
        for kind in ("response.created", "response.in_progress"):
            yield self._event(kind, response=self.whole() | empty)

    def add_text(self, kind: TextKind, text: str, logprobs: list[Any]) -> Iterator[bytes]:
        """Extend the open item, or open one."""
        if self._text is None or self._text["type"] != ITEM_TYPES[kind]:
            yield from self._close_text()
            yield from self._open_text(kind)
        assert self._text is not None
        part = self._text["content"][0]
        part["text"] += text
        fields: dict[str, Any] = {**self._place(self._text), "content_index": 0, "delta": text}
        if kind == "text":
            fields["logprobs"] = logprobs if self._wants_logprobs else []
            part["logprobs"] += fields["logprobs"]
        yield self._event(f"response.{PART_TYPES[kind]}.delta", **fields)

    def add_call(self, index: int, call: Mapping[str, Any]) -> Iterator[bytes]:
        """Extend a call; it stays open, since chunks of several may alternate."""
        if index not in self._calls:
            yield from self._close_text()
            tool = self._tools.find(call.get("name") or "")
            self._calls[index] = _OpenCall(tool, call.get("id"))
        known, piece = self._calls[index], call.get("arguments") or ""
        known.arguments += piece
        if self._waits(known):
            return
        if known.item is None:
            yield from self._open_call(known, FUNCTION)
        if piece:
            yield self._piece(known, piece)

    def close_parts(self) -> Iterator[bytes]:
        """End all items; a response without any has an empty text."""
        if not self._items and not self._calls:
            yield from self._open_text("text")
        yield from self._close_text()
        for call in self._calls.values():
            yield from self._close_call(call)

    def finish(self) -> Iterator[bytes]:
        """Yield the event with the whole response."""
        whole = self.whole()
        self.keep(orjson.dumps(whole))
        yield self._event(f"response.{self._status}", response=whole)

    def whole(self) -> dict[str, Any]:
        """Return the response."""
        requested, reason = self._requested, CUT_REASONS.get(self.finish_reason or "")
        return {
            "id": f"resp_{self._base_id}",
            "object": "response",
            "created_at": self.created,
            "status": self._status,
            "model": self.model,
            "output": self._items,
            "usage": _usage(self.usage) if self.usage else None,
            "error": None,
            "incomplete_details": {"reason": reason} if reason else None,
            **{name: requested.get(name) for name in ECHOED},
            "text": requested.get("text") or {"format": {"type": "text"}},
            "tools": requested.get("tools") or [],
            "tool_choice": requested.get("tool_choice") or "auto",
            "parallel_tool_calls": requested.get("parallel_tool_calls") is not False,
            "metadata": requested.get("metadata") or {},
            **self.state,
            "background": False,
            "truncation": "disabled",
        }

    @property
    def _status(self) -> str:
        return "incomplete" if self.finish_reason in CUT_REASONS else "completed"

    @property
    def _base_id(self) -> str:
        return self.chat_id.removeprefix("chatcmpl-")

    def _new_item(self, kind: str, prefix: str) -> Item:
        number = len(self._items)
        return {"id": f"{prefix}_{self._base_id}_{number}", "type": kind, "status": "in_progress"}

    def _open_text(self, kind: TextKind) -> Iterator[bytes]:
        part: Item = {"type": PART_TYPES[kind], "text": ""}
        if kind == "reasoning":
            item = self._new_item("reasoning", "rs") | {"summary": []}
        else:
            item = self._new_item("message", "msg") | {"role": "assistant"}
            part |= {"annotations": [], "logprobs": []}
        self._text = item | {"content": []}
        yield self._open(self._text)
        place = self._place(self._text)
        yield self._event("response.content_part.added", **place, content_index=0, part=part)
        self._text["content"] = [part]

    def _close_text(self) -> Iterator[bytes]:
        item, self._text = self._text, None
        if item is None:
            return
        (part,) = item["content"]
        if item["type"] == "reasoning" and self._keeps_reasoning:
            item["encrypted_content"] = keep_reasoning(part["text"])
        place = {**self._place(item), "content_index": 0}
        done = {name: part[name] for name in ("text", "logprobs") if name in part}
        yield self._event(f"response.{part['type']}.done", **place, **done)
        yield self._event("response.content_part.done", **place, part=part)
        yield self._finish_item(item)

    def _waits(self, call: "_OpenCall") -> bool:
        """Return whether the item is sent at the end: that of another tool, and those after it."""
        until = takewhile(lambda each: each is not call, self._calls.values())
        return any(each.tool.kind is not FUNCTION for each in (*until, call))

    def _open_call(self, call: "_OpenCall", kind: CallKind, **fields: Any) -> Iterator[bytes]:
        item = self._new_item(kind.item, kind.prefix)
        call.item = item | {"call_id": call.id or item["id"], **fields}
        if kind.text:
            names = {"name": call.tool.name, "namespace": call.tool.namespace, kind.text: ""}
            call.item |= {name: text for name, text in names.items() if text is not None}
        yield self._open(call.item)

    def _close_call(self, call: "_OpenCall") -> Iterator[bytes]:
        """End a call; one whose arguments do not have the form of its tool is a function's."""
        kind, fields = call.tool.kind, call.tool.kind.write(call.arguments)
        if fields is None:
            kind, fields = FUNCTION, {FUNCTION.text: call.arguments}
        if call.item is None:
            yield from self._open_call(call, kind, **({} if kind.text else fields))
            if kind.text and fields[kind.text]:
                yield self._piece(call, fields[kind.text], kind)
        assert call.item is not None
        if kind.text:
            call.item |= fields
            names = {"name": call.tool.name} if kind is FUNCTION else {}
            place = self._place(call.item)
            yield self._event(f"response.{kind.event}.done", **place, **names, **fields)
        yield self._finish_item(call.item)

    def _piece(self, call: "_OpenCall", text: str, kind: CallKind = FUNCTION) -> bytes:
        assert call.item is not None
        return self._event(f"response.{kind.event}.delta", **self._place(call.item), delta=text)

    def _open(self, item: Item) -> bytes:
        self._items.append(item)
        index = len(self._items) - 1
        return self._event("response.output_item.added", output_index=index, item=item)

    def _finish_item(self, item: Item) -> bytes:
        item["status"] = self._status
        index = self._place(item)["output_index"]
        return self._event("response.output_item.done", output_index=index, item=item)

    def _place(self, item: Item) -> dict[str, Any]:
        index = next(place for place, each in enumerate(self._items) if each is item)
        return {"item_id": item["id"], "output_index": index}

    def _event(self, kind: str, **fields: Any) -> bytes:
        event = {"type": kind, "sequence_number": self._events, **fields}
        self._events += 1
        return encode_event(orjson.dumps(event), kind)


def _usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    prompt, sampled = usage.get("prompt_tokens") or 0, usage.get("completion_tokens") or 0
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    reasoning = (usage.get("completion_tokens_details") or {}).get("reasoning_tokens") or 0
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens": sampled,
        "output_tokens_details": {"reasoning_tokens": reasoning},
        "total_tokens": prompt + sampled,
    }
