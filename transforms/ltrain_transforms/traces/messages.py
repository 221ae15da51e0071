"""The messages of an LLM call, in the gen_ai conventions: roles, texts, tool requests and results.

This is the only reader of messages. A message is `{"role", "parts": [{"type", ...}],
"finish_reason"}`; without `parts`, its `content` counts as them, as in OpenAI's chat API. Anyone
may write anything: every JSON object is a message, and what has no property stays in `fields`.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ltrain_transforms.traces.untrusted import parse_json

Fields = dict[str, Any]
"""A message or a part, as a JSON object."""

TEXT, REQUEST, RESULT = "text", "tool_call", "tool_call_response"
"""Types of parts."""
THINKING = ("reasoning", "thinking")
"""Types of parts that hold reasoning."""
ASSISTANTS = ("assistant", "ai", "model")
"""Roles of a model's answers."""


class ToolRequest(NamedTuple):
    """A tool call that a message requests."""

    id: str | None
    name: str | None
    arguments: Any
    """As recorded: an object, or its JSON."""

    @property
    def parsed_arguments(self) -> Any:
        """The arguments; text where they are no JSON."""
        return parse_json(self.arguments)


class ToolResult(NamedTuple):
    """The result of a tool call, in a message to the model."""

    id: str | None
    value: Any

    @property
    def text(self) -> str:
        """A text result unchanged; another as JSON."""
        return to_text(self.value)


# a prompt may have thousands of messages, and a frozen object takes twice as long to make
@dataclass(slots=True)
class MessagePart:
    """One part of a message."""

    type: str
    """An empty string where there is none."""
    fields: Fields

    @property
    def text(self) -> str:
        """The content of a text, reasoning or refusal part."""
        content = self.fields.get("content")
        if isinstance(content, str):
            return content
        content = self.fields.get("text") if content is None else content
        return "" if content is None else to_text(content)

    @property
    def request(self) -> ToolRequest:
        """The tool call that a part of type `REQUEST` requests."""
        fields = self.fields
        return ToolRequest(_name(fields, "id"), _name(fields, "name"), fields.get("arguments"))

    @property
    def result(self) -> ToolResult:
        """The result in a part of type `RESULT`."""
        fields = self.fields
        value = fields.get("response")
        return ToolResult(_name(fields, "id"), fields.get("result") if value is None else value)


@dataclass(slots=True)
class Message:
    """A message of a prompt or of an answer."""

    fields: Fields
    """The object that contains the message."""
    role: str = field(compare=False)
    """The role, as recorded; an empty string where there is none."""
    parts: list[MessagePart] = field(compare=False)
    """A string among the parts, or instead of them, is a text part."""

    @property
    def text(self) -> str:
        """The text of all text parts."""
        return "".join([part.text for part in self.parts if part.type == TEXT])

    @property
    def tool_requests(self) -> list[ToolRequest]:
        return [part.request for part in self.parts if part.type == REQUEST]

    @property
    def tool_results(self) -> list[ToolResult]:
        return [part.result for part in self.parts if part.type == RESULT]

    @property
    def finish_reason(self) -> str | None:
        """Why the model stopped, in an answer that says so."""
        reason = self.fields.get("finish_reason")
        return str(reason) if reason else None

    @property
    def is_assistant(self) -> bool:
        """Whether a model wrote it."""
        return self.role in ASSISTANTS


def read_messages(value: Any) -> list[Message]:
    """Return the messages of a JSON list or of its text; none where `value` is not a list."""
    messages = parse_json(value)
    if not isinstance(messages, list):
        return []
    return [read_message(fields) for fields in messages if isinstance(fields, dict)]


def read_message(fields: Fields) -> Message:
    role, recorded, parts = fields.get("role"), fields.get("parts"), []
    if not isinstance(recorded, list) or not recorded:
        content = fields.get("content")
        recorded = content if isinstance(content, list) else [content] if content else []
    for part in recorded:
        if isinstance(part, dict):
            kind = part.get("type")
            parts.append(MessagePart(kind if isinstance(kind, str) else "", part))
        elif isinstance(part, str):
            parts.append(MessagePart(TEXT, text_part(part)))
    return Message(fields, role if isinstance(role, str) else "", parts)


def write_messages(messages: Iterable[Message]) -> str:
    """Return the JSON from which `read_messages` reads the same messages."""
    return json.dumps([message.fields for message in messages], ensure_ascii=False)


def messages_text(messages: Iterable[Message]) -> str:
    """Return the text of all messages, in order."""
    return "".join([message.text for message in messages])


def tool_requests(messages: Iterable[Message]) -> list[ToolRequest]:
    """Return the tool requests of all messages, in order."""
    return [request for message in messages for request in message.tool_requests]


def new_message(role: str, parts: list[Fields]) -> Fields:
    return {"role": role, "parts": parts}


def text_part(text: str) -> Fields:
    return {"type": TEXT, "content": text}


def request_part(id: Any, name: Any, arguments: Any) -> Fields:
    """Return the part of a tool request; `arguments` is parsed where it is JSON."""
    return {"type": REQUEST, "id": id, "name": name, "arguments": parse_json(arguments)}


def result_part(id: str, result: Any) -> Fields:
    """Return the part of a tool's result; an empty text where there is none."""
    return {"type": RESULT, "id": id, "response": result or ""}


def to_text(value: Any) -> str:
    """Return a string unchanged, and any other value as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _name(fields: Fields, key: str) -> str | None:
    value = fields.get(key)
    return value if value is None or isinstance(value, str) else str(value)
