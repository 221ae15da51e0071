"""Turns of a request and of a call's messages, in a form that can be compared.

A turn is a tuple: the role or the kind, then the text; a tool call has its name and arguments
instead. The grouping of turns into messages differs between APIs and is ignored.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

Json = dict[str, Any]
Turn = tuple[str, ...]


def turns_of_request(body: Json) -> list[Turn]:
    """Return the turns of a request, of chat completions or responses."""
    if "messages" in body:
        return [turn for message in body["messages"] for turn in _of_message(message)]
    value = body["input"]
    items = [{"role": "user", "content": value}] if isinstance(value, str) else value
    instructions = [("system", body["instructions"])] if body.get("instructions") else []
    return [*instructions, *(turn for item in items for turn in _of_item(item))]


def turns_of_input(messages: str | None) -> list[Turn]:
    """Return the turns of a call's input, as in `calls`."""
    turns: list[Turn] = []
    for message in json.loads(messages or "[]"):
        for part in message["parts"]:
            if part["type"] == "text" and part["content"]:
                turns.append((_role(message["role"]), part["content"]))
            elif part["type"] == "tool_call":
                turns.append(_call(part["name"], part["arguments"]))
            elif part["type"] == "tool_call_response":
                turns.append(("result", _canonical(part.get("response", part.get("result")))))
    return turns


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


def _canonical(value: Any) -> str:
    """Return JSON, or text that is JSON, in canonical form."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return str(value)
    return json.dumps(value, sort_keys=True)
