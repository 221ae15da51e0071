"""Messages as OpenAI's chat API has them, from the form that traces hold."""

import json
from typing import Any

from ltrain_transforms.history import THINKING, message_parts

Message = dict[str, Any]

ROLES = {"human": "user", "ai": "assistant", "model": "assistant"}


class NotText(ValueError):
    """A part that is neither text nor a tool's call or result, such as an image."""


def chat(messages: list[Message]) -> list[Message]:
    """Give each message, thinking as `reasoning_content`; a tool's results are one message each.

    Raises:
        NotText: when a message holds an image, audio or a file.
    """
    return [one for message in messages for one in _messages(message)]


def _messages(message: Message) -> list[Message]:
    parts = message_parts(message)
    results = [part for part in parts if part.get("type") == "tool_call_response"]
    if results:
        return [_result(part) for part in results]
    role = str(message.get("role"))
    made: Message = {"role": ROLES.get(role, role), "content": _content(parts)}
    thinking = "".join(str(part.get("content")) for part in parts if part.get("type") in THINKING)
    if thinking:
        made["reasoning_content"] = thinking
    calls = [_call(part) for part in parts if part.get("type") == "tool_call"]
    if calls:
        made["tool_calls"] = calls
    return [made]


def _content(parts: list[Message]) -> str:
    others = {str(part.get("type")) for part in parts} - {"text", "refusal", "tool_call", *THINKING}
    if others:
        raise NotText(", ".join(sorted(others)))
    texts = (part for part in parts if part.get("type") in ("text", "refusal"))
    return "".join(str(part.get("content") or "") for part in texts)


def _result(part: Message) -> Message:
    given = part.get("response", part.get("result"))
    content = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
    return {"role": "tool", "tool_call_id": part.get("id"), "content": content}


def _call(part: Message) -> Message:
    given = part.get("arguments")
    arguments = given if isinstance(given, str) else json.dumps(given or {}, ensure_ascii=False)
    function = {"name": part.get("name"), "arguments": arguments}
    return {"id": part.get("id"), "type": "function", "function": function}
