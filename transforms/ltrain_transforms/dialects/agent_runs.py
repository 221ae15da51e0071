"""Inputs and outputs of AutoGen's and smolagents' agents, which OpenInference writes as Python."""

import json
import re
from typing import Any

from ltrain_transforms.traces import Span, parse_json, parse_literal

AUTOGEN = "openinference.instrumentation.autogen_agentchat"
SMOLAGENTS = "openinference.instrumentation.smolagents"
STRANDS = "strands.telemetry.tracer"

METHODS = {AUTOGEN: ".on_messages_stream", SMOLAGENTS: ".run"}
"""By scope: what follows the agent's name in the names of its spans."""

# possessive, so that an unfinished literal takes linear time, not quadratic
_TEXT = r"'(?:[^'\\]|\\.)*+'|\"(?:[^\"\\]|\\.)*+\""
_FIELD = re.compile(rf"(?P<literal>{_TEXT}) ", re.DOTALL)
_TYPE = re.compile(r"type='\w+'")
_ANSWER = re.compile(rf"FinalAnswerStep\(output=(?P<output>{_TEXT})\)$")
"""The last event of a stream, as smolagents' classes print themselves."""


def run_agent(span: Span) -> str:
    """Return the name of an agent, or of its class, from its span's name."""
    return span.name.removesuffix(METHODS.get(span.scope, ""))


def run_input(span: Span) -> str | None:
    """Return the input of a run: its task, or its messages as JSON."""
    text = span.get("input.value")
    value: Any = parse_json(text) if span.scope in METHODS else None
    if not isinstance(value, dict):
        return text
    if isinstance(value.get("task"), str):
        return str(value["task"])
    messages = value.get("messages")
    parsed = [_message(one) for one in messages] if isinstance(messages, list) else [None]
    return text if None in parsed else json.dumps({"messages": parsed}, ensure_ascii=False)


def run_output(span: Span) -> str | None:
    """Return the output of a run; of a stream its last event."""
    text = span.get("output.value")
    if span.scope != SMOLAGENTS or not text or "StreamDelta(" not in text[:100]:
        return text
    answer = _ANSWER.search(text)
    return None if answer is None else parse_literal(answer["output"])


def tool_arguments(span: Span) -> str | None:
    """Return a tool's arguments by name; smolagents writes the Python call's args and kwargs."""
    text = span.get("input.value")
    call: Any = parse_json(text) if span.scope == SMOLAGENTS else None
    if not isinstance(call, dict) or not {"args", "kwargs"} <= call.keys():
        return text
    keywords, positional = dict(call["kwargs"] or {}), call["args"] or []
    if len(positional) == 1 and isinstance(positional[0], dict) and not keywords:
        return json.dumps(positional[0], ensure_ascii=False)
    parameters = span.json("tool.parameters")
    names = parameters if isinstance(parameters, dict) else range(len(positional))
    by_name = {str(key): value for key, value in zip(names, positional, strict=False)}
    return json.dumps(by_name | keywords, ensure_ascii=False)


def _message(text: Any) -> dict[str, str] | None:
    """Parse a message as AutoGen's classes print themselves: `id=… source=… content=… type=…`."""
    if not isinstance(text, str) or not text.startswith("id="):
        return None
    role, end = _field(text, " source=", 0)
    content, end = _field(text, " content=", end)
    closed = _TYPE.fullmatch(text, max(text.rfind("type='"), end))
    if role is None or content is None or closed is None:
        return None
    return {"role": role, "content": content}


def _field(text: str, name: str, after: int) -> tuple[str | None, int]:
    """Return the literal after the first `name` past `after`, and its end."""
    start = text.find(name, after)
    match = _FIELD.match(text, start + len(name)) if start >= 0 else None
    return (None, after) if match is None else (parse_literal(match["literal"]), match.end())
