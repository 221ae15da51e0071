"""Messages of an LLM call: kept as JSON text, parsed on first use."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import orjson

from ltrain_transforms.traces import parse_json

Message = dict[str, Any]
"""A message of the gen_ai conventions: `{"role", "parts": [{"type", ...}], "finish_reason"}`."""

ComparableOutput = tuple[str, tuple[tuple[str, bytes], ...]]
"""The text, and name and arguments of each tool request."""

UNPARSED: Any = object()


@dataclass(slots=True)
class Messages:
    """The messages of one attribute."""

    attribute: str
    """The attribute's name."""
    raw: str = ""
    """Their JSON text, or an empty string."""
    system: list[Message] = field(default_factory=list)
    """Instructions from another attribute; they come first."""
    _parsed: Any = UNPARSED
    _comparable: Any = UNPARSED

    @classmethod
    def from_list(cls, attribute: str, messages: list[Message]) -> "Messages | None":
        """Return messages that were not JSON text; None where the list is empty."""
        return cls(attribute, _parsed=messages) if messages else None

    @property
    def parsed(self) -> list[Message]:
        """The messages that are objects."""
        if self._parsed is UNPARSED:
            messages = parse_json(self.raw)
            self._parsed = self._objects(messages) if isinstance(messages, list) else None
        return self._parsed or []

    def _objects(self, messages: list[Any]) -> list[Message]:
        objects = [message for message in messages if isinstance(message, dict)]
        if self.system or len(objects) < len(messages) or "\\u" in self.raw:
            self.raw = ""  # its text differs from these messages, or it has escaped letters
        return [*self.system, *objects]

    @property
    def broken(self) -> bool:
        """Whether the text is no JSON list: it was cut, or never was one."""
        return not self.parsed and self._parsed is None

    @property
    def text(self) -> str | None:
        """The messages as JSON, the original text if possible; None where there are none."""
        messages = self.parsed
        if not messages:
            return None
        return self.raw or json.dumps(messages, ensure_ascii=False)

    @property
    def comparable(self) -> ComparableOutput | None:
        """Text and tool requests in a comparable form; None where there are neither."""
        if self._comparable is UNPARSED:
            parts = [part for message in self.parsed for part in message_parts(message)]
            calls = [part for part in parts if part.get("type") == "tool_call"]
            requests = tuple((str(p.get("name")), _canonical(p.get("arguments"))) for p in calls)
            text = _text(parts)
            self._comparable = (text, requests) if text or requests else None
        return self._comparable  # type: ignore[no-any-return]


def _canonical(arguments: Any) -> bytes:
    # for a call without arguments some instrumentations write {}, others nothing
    return orjson.dumps(parse_json(arguments) or {}, option=orjson.OPT_SORT_KEYS)


def _text(parts: Iterable[dict[str, Any]]) -> str:
    return "".join([str(part.get("content") or "") for part in parts if part.get("type") == "text"])


def messages_text(messages: Iterable[Message] | None) -> str:
    """Return the text of all parts, in order."""
    return _text(part for message in messages or [] for part in message_parts(message))


def message_parts(message: Message) -> list[dict[str, Any]]:
    """Return the parts of a message that are objects."""
    parts = message.get("parts") if isinstance(message, dict) else None
    return [part for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []


def tool_requests(messages: Iterable[Message] | None) -> list[dict[str, Any]]:
    """Return the tool requests in these messages, in order."""
    parts = (part for message in messages or [] for part in message_parts(message))
    return [part for part in parts if part.get("type") == "tool_call"]
