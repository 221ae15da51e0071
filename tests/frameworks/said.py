"""What was said in a request, and in the messages of a call, in a form in which the two compare.

A turn is a tuple: who says it or what it is, then its text; a request for a tool has the name and
the arguments instead. How turns are grouped into messages differs between APIs, and is left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

Json = dict[str, Any]
Turn = tuple[str, ...]


def asked(body: Json) -> list[Turn]:
    """Give the turns of a request, chat completions or responses."""
    if "messages" in body:
        return [turn for message in body["messages"] for turn in _of_message(message)]
    given = body["input"]
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    told = [("system", body["instructions"])] if body.get("instructions") else []
    return [*told, *(turn for item in items for turn in _of_item(item))]


def read(messages: str | None) -> list[Turn]:
    """Give the turns of a call's input, as `calls` has it."""
    found: list[Turn] = []
    for message in json.loads(messages or "[]"):
        for part in message["parts"]:
            if part["type"] == "text" and part["content"]:
                found.append((_role(message["role"]), part["content"]))
            elif part["type"] == "tool_call":
                found.append(_call(part["name"], part["arguments"]))
            elif part["type"] == "tool_call_response":
                found.append(("result", _canonical(part.get("response", part.get("result")))))
    return found


def _of_message(message: Json) -> Iterator[Turn]:
    text = _text(message.get("content"))
    if message["role"] == "tool":
        yield "result", _canonical(text)
    elif text:
        yield _role(message["role"]), text
    for call in message.get("tool_calls") or ():
        yield _call(call["function"]["name"], call["function"]["arguments"])


def _of_item(item: Json) -> Iterator[Turn]:
    kind = item.get("type") or "message"
    if kind == "message":
        yield from _of_message(item)
    elif kind == "function_call":
        yield _call(item["name"], item["arguments"])
    elif kind == "function_call_output":
        yield "result", _canonical(_text(item["output"]))


def _role(role: str) -> str:
    return "system" if role == "developer" else role


def _call(name: str, arguments: Any) -> Turn:
    return "call", name, _canonical(arguments)


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "".join(str(part.get("text") or "") for part in content)
    return content or ""


def _canonical(given: Any) -> str:
    """Write JSON, or text that is JSON, in one way."""
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except ValueError:
            return str(given)
    return json.dumps(given, sort_keys=True)
