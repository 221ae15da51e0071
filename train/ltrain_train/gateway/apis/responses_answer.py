"""A chat completion as a response of OpenAI's Responses API, complete or as a stream of events."""

from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from ltrain_instrument.tokens import Request
from ltrain_train.gateway.apis.api import encode_event
from ltrain_train.gateway.apis.response_fields import replace_fields

Item = dict[str, Any]

LOGPROBS = "message.output_text.logprobs"
"""The value of `include` that requests log-probabilities."""
CUT_REASONS = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""Why a response is incomplete, by the chat's `finish_reason`."""


class ResponsesAnswer:
    """Builds the items of the response from the message of the chat, or from its deltas."""

    def __init__(self, request: Request, requested: Mapping[str, Any]) -> None:
        self._model, self._requested = request.model, requested
        self._items: list[Item] = []
        self._text: Item | None = None
        """The item of text or reasoning that the stream extends."""
        self._calls: dict[int, Item] = {}
        """The function calls by their index in the chat."""
        self._events = 0
        self._head: dict[str, Any] = {}
        self._usage: Mapping[str, Any] | None = None
        self._finish_reason: str | None = None

    def complete(self, body: bytes) -> tuple[dict[str, Any], bytes]:
        """Return the chat completion, and the response as JSON."""
        chat, _ = replace_fields(body, {})
        self._add_head(chat)
        for choice in chat.get("choices") or ():
            delta = dict(choice.get("message") or {})
            calls = delta.get("tool_calls") or ()
            delta["tool_calls"] = [{**call, "index": number} for number, call in enumerate(calls)]
            for _ in self._add_choice({**choice, "delta": delta}):
                pass  # nobody reads the events
        for _ in self._close():
            pass
        return chat, orjson.dumps(self._response(self._status))

    def chunk(self, data: bytes) -> tuple[dict[str, Any], bytes]:
        """Return the chunk of the chat, and the events of the response."""
        chat, _ = replace_fields(data, {})
        events = []
        if not self._head:
            self._add_head(chat)
            for kind in ("response.created", "response.in_progress"):
                events.append(self._event(kind, response=self._response("in_progress")))
        self._add_head(chat)
        for choice in chat.get("choices") or ():
            events += self._add_choice(choice)
        return chat, b"".join(events)

    def error(self, body: bytes) -> bytes:
        """Return the event of an error."""
        return encode_event(body)

    def end(self) -> bytes:
        """Return the events that end the items and the response."""
        events = list(self._close())
        events.append(
            self._event(f"response.{self._status}", response=self._response(self._status))
        )
        return b"".join(events)

    @property
    def _status(self) -> str:
        return "incomplete" if self._finish_reason in CUT_REASONS else "completed"

    @property
    def _id(self) -> str:
        return str(self._head.get("id") or "").removeprefix("chatcmpl-")

    def _add_head(self, chat: Mapping[str, Any]) -> None:
        self._head = self._head or {"id": chat.get("id"), "created": chat.get("created")}
        self._usage = chat.get("usage") or self._usage

    def _add_choice(self, choice: Mapping[str, Any]) -> Iterator[bytes]:
        delta = choice.get("delta") or {}
        if text := delta.get("reasoning") or delta.get("reasoning_content"):
            yield from self._add_text("reasoning", text, [])
        if text := delta.get("content") or delta.get("refusal"):
            logprobs = (choice.get("logprobs") or {}).get("content") or []
            yield from self._add_text("message", text, logprobs)
        for call in delta.get("tool_calls") or ():
            yield from self._add_call(call)
        self._finish_reason = choice.get("finish_reason") or self._finish_reason

    def _add_text(self, kind: str, text: str, logprobs: list[Any]) -> Iterator[bytes]:
        if self._text is None or self._text["type"] != kind:
            yield from self._close_text()
            yield from self._open_text(kind)
        assert self._text is not None
        place = self._place(self._text)
        part = self._text["content"][0]
        part["text"] += text
        if kind == "reasoning":
            yield self._event("response.reasoning_text.delta", **place, content_index=0, delta=text)
            return
        if not self._wants_logprobs:
            logprobs = []
        part["logprobs"] += logprobs
        yield self._event(
            "response.output_text.delta", **place, content_index=0, delta=text, logprobs=logprobs
        )

    def _open_text(self, kind: str) -> Iterator[bytes]:
        item: Item = {"type": kind, "status": "in_progress", "content": []}
        part: Item = {"text": ""}
        if kind == "reasoning":
            item |= {"id": self._next_id("rs"), "summary": []}
            part["type"] = "reasoning_text"
        else:
            item |= {"id": self._next_id("msg"), "role": "assistant"}
            part |= {"type": "output_text", "annotations": [], "logprobs": []}
        self._text = item
        yield from self._open(item)
        yield self._event(
            "response.content_part.added", **self._place(item), content_index=0, part=part
        )
        item["content"] = [part]

    def _close_text(self) -> Iterator[bytes]:
        item, self._text = self._text, None
        if item is None:
            return
        place, (part,) = {**self._place(item), "content_index": 0}, item["content"]
        if item["type"] == "reasoning":
            yield self._event("response.reasoning_text.done", **place, text=part["text"])
        else:
            logprobs = part["logprobs"]
            yield self._event(
                "response.output_text.done", **place, text=part["text"], logprobs=logprobs
            )
        yield self._event("response.content_part.done", **place, part=part)
        yield self._finish(item)

    def _add_call(self, delta: Mapping[str, Any]) -> Iterator[bytes]:
        function = delta.get("function") or {}
        index = delta.get("index", len(self._calls))
        if index not in self._calls:
            yield from self._close_text()
            item = {"id": self._next_id("fc"), "type": "function_call", "status": "in_progress"}
            item |= {"call_id": delta.get("id") or item["id"], "name": "", "arguments": ""}
            item["name"] = function.get("name") or ""
            self._calls[index] = item
            yield from self._open(item)
        item = self._calls[index]
        if arguments := function.get("arguments"):
            item["arguments"] += arguments
            yield self._event(
                "response.function_call_arguments.delta", **self._place(item), delta=arguments
            )

    def _close(self) -> Iterator[bytes]:
        """End all items; a response without any has an empty text."""
        if not self._items:
            yield from self._open_text("message")
        yield from self._close_text()
        for item in self._calls.values():
            fields = {"name": item["name"], "arguments": item["arguments"]}
            yield self._event(
                "response.function_call_arguments.done", **self._place(item), **fields
            )
            yield self._finish(item)

    def _open(self, item: Item) -> Iterator[bytes]:
        self._items.append(item)
        index = len(self._items) - 1
        yield self._event("response.output_item.added", output_index=index, item=item)

    def _finish(self, item: Item) -> bytes:
        item["status"] = self._status
        index = self._place(item)["output_index"]
        return self._event("response.output_item.done", output_index=index, item=item)

    def _place(self, item: Item) -> dict[str, Any]:
        index = next(place for place, each in enumerate(self._items) if each is item)
        return {"item_id": item["id"], "output_index": index}

    def _next_id(self, prefix: str) -> str:
        return f"{prefix}_{self._id}_{len(self._items)}"

    def _event(self, kind: str, **fields: Any) -> bytes:
        event = {"type": kind, "sequence_number": self._events, **fields}
        self._events += 1
        return encode_event(orjson.dumps(event), kind)

    @property
    def _wants_logprobs(self) -> bool:
        return LOGPROBS in (self._requested.get("include") or ())

    def _response(self, status: str) -> dict[str, Any]:
        requested = self._requested
        reason = CUT_REASONS.get(self._finish_reason or "")
        echoed = ("instructions", "max_output_tokens", "temperature", "top_p", "reasoning", "user")
        return {
            "id": f"resp_{self._id}",
            "object": "response",
            "created_at": self._head.get("created") or 0,
            "status": status,
            "model": self._model,
            "output": self._items if status != "in_progress" else [],
            "usage": _usage(self._usage) if status != "in_progress" else None,
            "error": None,
            "incomplete_details": {"reason": reason} if status == "incomplete" else None,
            **{name: requested.get(name) for name in echoed},
            "text": requested.get("text") or {"format": {"type": "text"}},
            "tools": requested.get("tools") or [],
            "tool_choice": requested.get("tool_choice") or "auto",
            "parallel_tool_calls": requested.get("parallel_tool_calls") is not False,
            "metadata": requested.get("metadata") or {},
            "previous_response_id": None,
            "background": False,
            "store": False,
            "truncation": "disabled",
        }


def _usage(usage: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if usage is None:
        return None
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
