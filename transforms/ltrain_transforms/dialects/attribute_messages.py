"""The messages of one attribute of a span: kept as JSON text, parsed on first use."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from ltrain_transforms.traces import (
    Fields,
    Message,
    messages_text,
    parse_json,
    read_messages,
    tool_requests,
    write_messages,
)

ComparableOutput = tuple[str, tuple[tuple[str, bytes], ...]]
"""The text, and name and arguments of each tool request."""

UNPARSED: Any = object()


@dataclass(slots=True)
class AttributeMessages:
    attribute: str
    """The attribute's name."""
    raw: str = ""
    """Their JSON text, or an empty string."""
    system: Sequence[Fields] = ()
    """Instructions from another attribute; they come first."""
    _objects: Any = UNPARSED
    """The messages as JSON objects; None where `raw` is not a JSON list."""
    _messages: Any = UNPARSED
    _comparable: Any = UNPARSED

    @classmethod
    def from_list(cls, attribute: str, messages: list[Fields]) -> "AttributeMessages | None":
        """Return messages that were not JSON text; None where the list is empty."""
        return cls(attribute, _objects=messages) if messages else None

    @property
    def messages(self) -> list[Message]:
        """The messages that are objects."""
        if self._messages is UNPARSED:
            self._messages = read_messages(self._parse() or [])
        return self._messages  # type: ignore[no-any-return]

    @property
    def broken(self) -> bool:
        """Whether the text is not a JSON list, or is a truncated list."""
        return self._parse() is None

    @property
    def text(self) -> str | None:
        """The messages as JSON, the original text if possible; None where there are none."""
        return (self.raw or write_messages(self.messages)) if self._parse() else None

    def _parse(self) -> list[Fields] | None:
        if self._objects is UNPARSED:
            values = parse_json(self.raw)
            self._objects = self._with_system(values) if isinstance(values, list) else None
        return self._objects  # type: ignore[no-any-return]

    def _with_system(self, values: list[Any]) -> list[Fields]:
        objects = [message for message in values if isinstance(message, dict)]
        if self.system or len(objects) < len(values) or "\\u" in self.raw:
            self.raw = ""  # its text differs from these messages, or it has escaped letters
        return [*self.system, *objects]

    @property
    def comparable(self) -> ComparableOutput | None:
        """Text and tool requests in a comparable form; None where there are neither."""
        if self._comparable is UNPARSED:
            requests = tuple(
                (str(request.name), _canonical(request.parsed_arguments))
                for request in tool_requests(self.messages)
            )
            text = messages_text(self.messages)
            self._comparable = (text, requests) if text or requests else None
        return self._comparable  # type: ignore[no-any-return]


def _canonical(arguments: Any) -> bytes:
    # for a call without arguments some instrumentations write {}, others nothing
    return orjson.dumps(arguments or {}, option=orjson.OPT_SORT_KEYS)
