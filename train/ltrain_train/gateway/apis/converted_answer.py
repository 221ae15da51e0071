"""Reads a chat completion, complete or in chunks, for an answer in another API."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import orjson

from ltrain_instrument.tokens import Request
from ltrain_train.gateway.apis.api import encode_event
from ltrain_train.gateway.apis.body import JsonObject
from ltrain_train.gateway.apis.response_fields import replace_fields

TextKind = Literal["reasoning", "text"]


class ConvertedAnswer(ABC):
    """Reports the parts of the assistant's message in their order.

    A complete message is read as a stream of one chunk, whose events nobody needs.
    """

    def __init__(self, request: Request) -> None:
        self.model = request.model
        self.chat_id = ""
        self.created = 0
        self.usage: Mapping[str, Any] = {}
        self.finish_reason: str | None = None
        self.stop_sequence: str | None = None
        self._begun = False

    def complete(self, body: bytes) -> tuple[dict[str, Any], bytes]:
        """Return the chat completion, and the client's response as JSON."""
        chat, _ = replace_fields(body, {})
        self._read_head(chat)
        for choice in chat.get("choices") or ():
            delta = dict(choice.get("message") or {})
            calls = delta.get("tool_calls") or ()
            delta["tool_calls"] = [{**call, "index": number} for number, call in enumerate(calls)]
            list(self._read_choice({**choice, "delta": delta}))
        list(self.close_parts())
        return chat, orjson.dumps(self.whole())

    def chunk(self, data: bytes) -> tuple[dict[str, Any], bytes]:
        """Return the chunk of the chat, and the client's events."""
        chat, _ = replace_fields(data, {})
        self._read_head(chat)
        events = [] if self._begun else list(self.begin(chat))
        self._begun = True
        for choice in chat.get("choices") or ():
            events += self._read_choice(choice)
        return chat, b"".join(events)

    def end(self) -> bytes:
        """Return the client's last events."""
        return b"".join([*self.close_parts(), *self.finish()])

    def error(self, status: int, body: bytes) -> bytes:
        """Return the event of an error."""
        return encode_event(body)

    def error_body(self, status: int, body: bytes) -> bytes:
        """Return the body as it is."""
        return body

    @abstractmethod
    def begin(self, chat: Mapping[str, Any]) -> Iterator[bytes]:
        """Yield the first events, for the first chunk of the chat."""

    @abstractmethod
    def add_text(self, kind: TextKind, text: str, logprobs: list[Any]) -> Iterator[bytes]:
        """Add a piece of text, with the log-probabilities of its tokens."""

    @abstractmethod
    def add_call(self, index: int, call: Mapping[str, Any]) -> Iterator[bytes]:
        """Add a piece of a function call: `id`, `name` and `arguments`, where they are new."""

    @abstractmethod
    def close_parts(self) -> Iterator[bytes]:
        """End the parts that are still open."""

    @abstractmethod
    def finish(self) -> Iterator[bytes]:
        """Yield the events after the last part."""

    @abstractmethod
    def whole(self) -> dict[str, Any]:
        """Return the complete response."""

    def _read_head(self, chat: Mapping[str, Any]) -> None:
        self.chat_id = self.chat_id or str(chat.get("id") or "")
        self.created = self.created or int(chat.get("created") or 0)
        self.usage = chat.get("usage") or self.usage

    def _read_choice(self, choice: Mapping[str, Any]) -> Iterator[bytes]:
        delta = choice.get("delta") or {}
        if text := delta.get("reasoning") or delta.get("reasoning_content"):
            yield from self.add_text("reasoning", text, [])
        if text := delta.get("content") or delta.get("refusal"):
            logprobs = (choice.get("logprobs") or {}).get("content") or []
            yield from self.add_text("text", text, logprobs)
        for number, call in enumerate(delta.get("tool_calls") or ()):
            function = call.get("function") or {}
            yield from self.add_call(call.get("index", number), {**function, "id": call.get("id")})
        self.finish_reason = choice.get("finish_reason") or self.finish_reason
        if isinstance(choice.get("stop_reason"), str):  # vLLM's name of the text that matched
            self.stop_sequence = choice["stop_reason"]


@dataclass(slots=True)
class WholeCall:
    """A function call, which is complete when the answer has ended."""

    id: str | None = None
    name: str | None = None
    text: str = ""
    """Its arguments as JSON."""

    @property
    def arguments(self) -> JsonObject:
        """Its arguments; a text that is not an object is inside one."""
        try:
            arguments = orjson.loads(self.text or "{}")
        except orjson.JSONDecodeError:
            arguments = None
        return arguments if isinstance(arguments, dict) else {"arguments": self.text}


class WholeCallsAnswer(ConvertedAnswer):
    """Collects the function calls, for an API that has each of them with all its arguments."""

    def __init__(self, request: Request) -> None:
        super().__init__(request)
        self._calls: dict[int, WholeCall] = {}
        """The calls by their index in the chat."""

    def add_call(self, index: int, call: Mapping[str, Any]) -> Iterator[bytes]:
        """Collect the call."""
        known = self._calls.setdefault(index, WholeCall())
        known.id = call.get("id") or known.id
        known.name = call.get("name") or known.name
        known.text += call.get("arguments") or ""
        yield from ()

    @property
    def calls(self) -> list[WholeCall]:
        """The calls in their order."""
        return [call for _, call in sorted(self._calls.items())]
