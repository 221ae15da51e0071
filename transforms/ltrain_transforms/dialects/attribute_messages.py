"""The messages of an attribute of a span: kept as JSON text, parsed on first use.

Those of lists that were flattened into attribute names are read here too: `prefix.0.role`,
`prefix.1.role`, ...
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from ltrain_transforms.traces import (
    Fields,
    Message,
    Span,
    messages_text,
    new_message,
    parse_index,
    parse_json,
    read_messages,
    request_part,
    result_part,
    text_part,
    tool_requests,
    write_messages,
)

ComparableOutput = tuple[str, tuple[tuple[str, bytes], ...]]
"""The text, and name and arguments of each tool request."""

UNPARSED: Any = object()
ITEM_ID = "fc_"
"""The beginning of the ids of items in the Responses API. traceloop writes them for those of tool
calls, which results and tools name."""


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


def indices(span: Span, prefix: str) -> list[int]:
    """Return the N of every `prefix.N.…`; an attribute limit may have removed some."""
    dotted, start = prefix + ".", len(prefix) + 1
    if "\n" + dotted not in span.attribute_names:
        return []
    within = [name for name in span.attributes if name.startswith(dotted)]
    numbers = {name[start:].split(".", 1)[0] for name in within}
    return sorted(number for number in map(parse_index, numbers) if number is not None)


def read_tool_call(span: Span, prefix: str, name: str, arguments: str) -> Fields:
    """Read one tool request; `name` and `arguments` are the last parts of its attributes."""
    id, *fields = (span.get(f"{prefix}.{field}") for field in ("id", name, arguments))
    return request_part(None if id and id.startswith(ITEM_ID) else id, *fields)


def build_message(
    role: str | None,
    text: str | None,
    calls: list[Fields],
    tool_call_id: str | None,
    reasoning: Iterable[Fields] = (),
) -> Fields:
    """Return a message; one with a `tool_call_id` is the result of that tool call."""
    if tool_call_id:
        return new_message(role or "tool", [*reasoning, result_part(tool_call_id, text)])
    texts = [text_part(text)] if text else []
    return new_message(role or "user", [*reasoning, *texts, *calls])


def flattened_messages(span: Span, prefix: str) -> AttributeMessages | None:
    """Return the messages `prefix.N.{role,content,tool_calls.K.*}` of older traceloop releases."""
    return AttributeMessages.from_list(
        prefix, [_message(span, f"{prefix}.{n}") for n in indices(span, prefix)]
    )


def _message(span: Span, prefix: str) -> Fields:
    calls = [
        read_tool_call(span, f"{prefix}.tool_calls.{k}", "name", "arguments")
        for k in indices(span, f"{prefix}.tool_calls")
    ]
    role, text = span.get(f"{prefix}.role"), span.get(f"{prefix}.content")
    return build_message(role, text, calls, span.get(f"{prefix}.tool_call_id"))
