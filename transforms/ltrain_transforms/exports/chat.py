"""Messages in the format of OpenAI's chat API, from the format of traces."""

import json
from typing import Any

from ltrain_transforms.traces import THINKING, message_parts

Message = dict[str, Any]

ROLES = {"human": "user", "ai": "assistant", "model": "assistant"}


class NotText(ValueError):
    """A message part that is neither text nor a tool call or result, such as an image."""


def to_chat(messages: list[Message]) -> list[Message]:
    """Convert messages: thinking becomes `reasoning_content`, each tool result a message.

    Raises:
        NotText: when a message holds an image, audio or a file.
    """
    return [converted for message in messages for converted in _messages(message)]


def _messages(message: Message) -> list[Message]:
    parts = message_parts(message)
    results = [part for part in parts if part.get("type") == "tool_call_response"]
    if results:
        return [_result(part) for part in results]
    role = str(message.get("role"))
    converted: Message = {"role": ROLES.get(role, role), "content": _content(parts)}
    thinking = "".join(str(part.get("content")) for part in parts if part.get("type") in THINKING)
    if thinking:
        converted["reasoning_content"] = thinking
    calls = [_call(part) for part in parts if part.get("type") == "tool_call"]
    if calls:
        converted["tool_calls"] = calls
    return [converted]


def _content(parts: list[Message]) -> str:
    others = {str(part.get("type")) for part in parts} - {"text", "refusal", "tool_call", *THINKING}
    if others:
        raise NotText(", ".join(sorted(others)))
    texts = (part for part in parts if part.get("type") in ("text", "refusal"))
    return "".join(str(part.get("content") or "") for part in texts)


def _result(part: Message) -> Message:
    result = part.get("response", part.get("result"))
    content = result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)
    return {"role": "tool", "tool_call_id": part.get("id"), "content": content}


def _call(part: Message) -> Message:
    value = part.get("arguments")
    arguments = value if isinstance(value, str) else json.dumps(value or {}, ensure_ascii=False)
    function = {"name": part.get("name"), "arguments": arguments}
    return {"id": part.get("id"), "type": "function", "function": function}
