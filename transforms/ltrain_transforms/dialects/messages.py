"""Messages of an LLM call: the JSON text that they already are, parsed when someone asks."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import orjson

from ltrain_transforms.untrusted import parse_json

Message = dict[str, Any]
"""As the gen_ai conventions have it: `{"role", "parts": [{"type", ...}], "finish_reason"}`."""

ComparableOutput = tuple[str, tuple[tuple[str, bytes], ...]]
"""Text, and the name and arguments of each tool that is asked for."""

UNPARSED: Any = object()


@dataclass(slots=True)
class Messages:
    attribute: str
    """Where they stand."""
    written: str = ""
    """JSON text, or nothing."""
    system: list[Message] = field(default_factory=list)
    """Instructions that stand apart, and come first."""
    _read: Any = UNPARSED
    _comparable: Any = UNPARSED

    @classmethod
    def of(cls, attribute: str, messages: list[Message]) -> "Messages | None":
        """Hold messages that are no JSON text; None where there are none."""
        return cls(attribute, _read=messages) if messages else None

    @property
    def parsed(self) -> list[Message]:
        """The messages; a stray one that is no object is left out."""
        if self._read is UNPARSED:
            given = parse_json(self.written)
            self._read = self._kept(given) if isinstance(given, list) else None
        return self._read or []

    def _kept(self, given: list[Any]) -> list[Message]:
        found = [message for message in given if isinstance(message, dict)]
        if self.system or len(found) < len(given) or "\\u" in self.written:
            self.written = ""  # another text than these messages', or one that hides its letters
        return [*self.system, *found]

    @property
    def broken(self) -> bool:
        """Say whether the text is no JSON list: it was cut short, or never was one."""
        return not self.parsed and self._read is None

    @property
    def text(self) -> str | None:
        """The messages as JSON, as they were written where that will do; None where none are."""
        messages = self.parsed
        if not messages:
            return None
        return self.written or json.dumps(messages, ensure_ascii=False)

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
    # of a call without arguments some writers say {}, others nothing
    return orjson.dumps(parse_json(arguments) or {}, option=orjson.OPT_SORT_KEYS)


def _text(parts: Iterable[dict[str, Any]]) -> str:
    return "".join([str(part.get("content") or "") for part in parts if part.get("type") == "text"])


def messages_text(messages: Iterable[Message] | None) -> str:
    """Give the text of all parts, in order."""
    return _text(part for message in messages or [] for part in message_parts(message))


def message_parts(message: Message) -> list[dict[str, Any]]:
    """Give a message's parts; a stray one that is no object is left out."""
    parts = message.get("parts") if isinstance(message, dict) else None
    return [part for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []


def tool_requests(messages: Iterable[Message] | None) -> list[dict[str, Any]]:
    """Give the tool calls that these messages ask for, in order."""
    parts = (part for message in messages or [] for part in message_parts(message))
    return [part for part in parts if part.get("type") == "tool_call"]
