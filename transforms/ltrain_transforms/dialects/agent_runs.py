"""Runs of AutoGen's and smolagents' agents, out of the Python that OpenInference writes of them."""

import json
import re
from typing import Any

from ltrain_transforms.spans import Span
from ltrain_transforms.untrusted import parse_json, parse_literal

AUTOGEN = "openinference.instrumentation.autogen_agentchat"
SMOLAGENTS = "openinference.instrumentation.smolagents"

METHODS = {AUTOGEN: ".on_messages_stream", SMOLAGENTS: ".run"}
"""What stands behind an agent's name in the names of its spans."""

# possessive: an unfinished literal costs one look at each character, not one at each pair
_TEXT = r"'(?:[^'\\]|\\.)*+'|\"(?:[^\"\\]|\\.)*+\""
_FIELD = re.compile(rf"(?P<literal>{_TEXT}) ", re.DOTALL)
_TYPE = re.compile(r"type='\w+'")
_ANSWER = re.compile(rf"FinalAnswerStep\(output=(?P<output>{_TEXT})\)$")
"""The end of a stream as smolagents' classes print themselves."""


def agent_name(span: Span) -> str:
    """Give an agent's name, or that of its class, out of its span's."""
    return span.name.removesuffix(METHODS.get(span.scope, ""))


def run_input(span: Span) -> str | None:
    """Give what a run was given: its task, or the messages, as JSON."""
    text = span.get("input.value")
    value: Any = parse_json(text) if span.scope in METHODS else None
    if not isinstance(value, dict):
        return text
    if isinstance(value.get("task"), str):
        return str(value["task"])
    messages = value.get("messages")
    read = [_message(each) for each in messages] if isinstance(messages, list) else [None]
    return text if None in read else json.dumps({"messages": read}, ensure_ascii=False)


def run_output(span: Span) -> str | None:
    """Give what a run answered; of a stream, its last event."""
    text = span.get("output.value")
    if span.scope != SMOLAGENTS or not text or "StreamDelta(" not in text[:100]:
        return text
    answer = _ANSWER.search(text)
    return None if answer is None else parse_literal(answer["output"])


def tool_arguments(span: Span) -> str | None:
    """Give a tool's arguments by name; smolagents writes how Python was called."""
    text = span.get("input.value")
    called: Any = parse_json(text) if span.scope == SMOLAGENTS else None
    if not isinstance(called, dict) or not {"args", "kwargs"} <= called.keys():
        return text
    named, placed = dict(called["kwargs"] or {}), called["args"] or []
    if len(placed) == 1 and isinstance(placed[0], dict) and not named:
        return json.dumps(placed[0], ensure_ascii=False)
    parameters = span.json("tool.parameters")
    names = parameters if isinstance(parameters, dict) else range(len(placed))
    positional = {str(key): value for key, value in zip(names, placed, strict=False)}
    return json.dumps(positional | named, ensure_ascii=False)


def _message(text: Any) -> dict[str, str] | None:
    """Read a message as AutoGen's classes print themselves: `id=… source=… content=… type=…`."""
    if not isinstance(text, str) or not text.startswith("id="):
        return None
    role, end = _field(text, " source=", 0)
    content, end = _field(text, " content=", end)
    closed = _TYPE.fullmatch(text, max(text.rfind("type='"), end))
    if role is None or content is None or closed is None:
        return None
    return {"role": role, "content": content}


def _field(text: str, name: str, after: int) -> tuple[str | None, int]:
    """Return the literal behind the first `name`, and where it ends."""
    at = text.find(name, after)
    found = _FIELD.match(text, at + len(name)) if at >= 0 else None
    return (None, after) if found is None else (parse_literal(found["literal"]), found.end())
