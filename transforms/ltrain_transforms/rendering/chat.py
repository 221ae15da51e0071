"""Messages and tools in the format of OpenAI's chat API, from the format of traces."""

from collections.abc import Iterable
from typing import Any

from ltrain_transforms.traces import (
    REQUEST,
    TEXT,
    THINKING,
    Fields,
    Message,
    MessagePart,
    ToolRequest,
    ToolResult,
    parse_json,
    to_text,
)

ChatMessage = dict[str, Any]
"""A message of OpenAI's chat API: `{"role", "content", "tool_calls", ...}`."""

REFUSAL = "refusal"
"""The type of a part that refuses to answer; it is text for this API."""

ROLES = {"human": "user", "ai": "assistant", "model": "assistant"}


class NotText(ValueError):
    """A message part that is neither text nor a tool call or result, such as an image."""


def to_chat(messages: Iterable[Message]) -> list[ChatMessage]:
    """Convert messages: thinking becomes `reasoning_content`, each tool result a message."""
    return [converted for message in messages for converted in _converted(message)]


def _converted(message: Message) -> list[ChatMessage]:
    results = message.tool_results
    if results:
        return [_result(result) for result in results]
    role, parts = message.role, message.parts
    converted: ChatMessage = {"role": ROLES.get(role, role), "content": _content(parts)}
    thinking = "".join(part.text for part in parts if part.type in THINKING)
    if thinking:
        converted["reasoning_content"] = thinking
    calls = [_call(request) for request in message.tool_requests]
    if calls:
        converted["tool_calls"] = calls
    return [converted]


def _content(parts: Iterable[MessagePart]) -> str:
    others = {part.type for part in parts} - {TEXT, REFUSAL, REQUEST, *THINKING}
    if others:
        raise NotText(", ".join(sorted(others)))
    return "".join(part.text for part in parts if part.type in (TEXT, REFUSAL))


def _result(result: ToolResult) -> ChatMessage:
    return {"role": "tool", "tool_call_id": result.id, "content": result.text}


def _call(request: ToolRequest) -> ChatMessage:
    arguments = request.arguments
    text = arguments if isinstance(arguments, str) else to_text(arguments or {})
    function = {"name": request.name, "arguments": text}
    return {"id": request.id, "type": "function", "function": function}


def read_tools(text: str | None) -> list[Fields]:
    """Return the tools of a request, in the format of OpenAI's API."""
    definitions = parse_json(text)
    offered = definitions if isinstance(definitions, list) else []
    return [_tool(tool) for tool in offered if isinstance(tool, dict)]


def _tool(definition: Fields) -> Fields:
    """Return a tool in OpenAI's format; the OpenTelemetry format has no nested `function`."""
    if isinstance(definition.get("function"), dict):
        return definition
    names = ("name", "description", "parameters")
    function = {name: definition[name] for name in names if definition.get(name) is not None}
    return {"type": "function", "function": function}
