"""Runs of AutoGen's and smolagents' agents, out of the Python that OpenInference writes of them."""

import json
import re
from ast import literal_eval
from typing import Any

from ltrain_transforms.spans import Span, parsed

AUTOGEN = "openinference.instrumentation.autogen_agentchat"
SMOLAGENTS = "openinference.instrumentation.smolagents"

METHODS = {AUTOGEN: ".on_messages_stream", SMOLAGENTS: ".run"}
"""What stands behind an agent's name in the names of its spans."""

_TEXT = r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\""
_MESSAGE = re.compile(
    rf"id=.*? source=(?P<source>{_TEXT}) .* content=(?P<content>{_TEXT}) .*type='\w+'", re.DOTALL
)
"""A message as AutoGen's classes print themselves."""
_ANSWER = re.compile(rf"FinalAnswerStep\(output=(?P<output>{_TEXT})\)$")
"""The end of a stream as smolagents' classes print themselves."""


def name(span: Span) -> str:
    """Give an agent's name, or that of its class, out of its span's."""
    return span.name.removesuffix(METHODS.get(span.scope, ""))


def given(span: Span) -> str | None:
    """Give what a run was given: its task, or the messages, as JSON."""
    text = span.get("input.value")
    value: Any = parsed(text) if span.scope in METHODS else None
    if not isinstance(value, dict):
        return text
    if isinstance(value.get("task"), str):
        return str(value["task"])
    messages = value.get("messages")
    read = [_message(each) for each in messages] if isinstance(messages, list) else [None]
    return text if None in read else json.dumps({"messages": read}, ensure_ascii=False)


def gave(span: Span) -> str | None:
    """Give what a run answered; of a stream, its last event."""
    text = span.get("output.value")
    if span.scope != SMOLAGENTS or not text or "StreamDelta(" not in text[:100]:
        return text
    answer = _ANSWER.search(text)
    return None if answer is None else str(literal_eval(answer["output"]))


def arguments(span: Span) -> str | None:
    """Give a tool's arguments by name; smolagents writes how Python was called."""
    text = span.get("input.value")
    called: Any = parsed(text) if span.scope == SMOLAGENTS else None
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
    found = _MESSAGE.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        return None
    return {"role": literal_eval(found["source"]), "content": literal_eval(found["content"])}
