"""DSPy: corrections of the fields that OpenInference's instrumentor writes.

It writes the bound arguments of a Python method as a call's input, and results as JSON, so a text
has quotes. A module that calls tools is an agent; its name is that of its class.
"""

import json
from typing import Any

from ltrain_transforms.dialects.partial import Dialect, Partial, non_empty
from ltrain_transforms.dialects.tool_payloads import parse_tool_result
from ltrain_transforms.traces import Span, parse_json, to_text

SCOPE = "openinference.instrumentation.dspy"

METHODS = (".__call__", ".acall", ".forward", ".aforward")
"""The suffix of a tool's or module's name in the names of its spans."""
AGENTS = ("ReAct", "ReActV2", "CodeAct")
"""Modules that call tools."""
ENVELOPES = ("kwargs", "input_args")
"""Arguments that hold all others."""
RECORDS = ("history", "trajectory", "termination_reason")
"""The value that an agent returns beside the fields of its answer."""


def _read(span: Span) -> Partial:
    """Return the fields that correct those of `openinference`."""
    if span.scope != SCOPE:
        return {}
    kind, name = span.get("openinference.span.kind"), _name(span)
    if kind == "TOOL":
        fields = non_empty(name=span.get("tool.name") or name, arguments=_arguments(span))
        return {**fields, **parse_tool_result(_result(span))}
    if kind == "CHAIN" and name in AGENTS:
        return non_empty(kind="agent", agent=name, input=_question(span), output=_answer(span))
    if kind == "CHAIN":
        return non_empty(name=name, node=name, input=_arguments(span), output=_result(span))
    if kind in ("AGENT", "RETRIEVER"):
        return non_empty(name=name, input=_arguments(span), output=_result(span))
    return {}


def _name(span: Span) -> str:
    method = next((one for one in METHODS if span.name.endswith(one)), "")
    return span.name.removesuffix(method)


def _arguments(span: Span) -> str | None:
    """Return the keyword arguments inside `{"kwargs": {...}}`; another input unchanged."""
    bound: Any = span.json("input.value")
    if not isinstance(bound, dict):
        return span.get("input.value")
    envelope = next((name for name in ENVELOPES if isinstance(bound.get(name), dict)), None)
    if envelope is None:
        return span.get("input.value")
    others = {name: value for name, value in bound.items() if name != envelope}
    if not others.get("args"):
        others.pop("args", None)
    return json.dumps(others | bound[envelope], ensure_ascii=False)


def _question(span: Span) -> str | None:
    return _only_text(parse_json(_arguments(span))) or _arguments(span)


def _answer(span: Span) -> str | None:
    """Return the fields of an agent's answer; a single text as it is."""
    value: Any = span.json("output.value")
    if not isinstance(value, dict):
        return _result(span)
    fields = {name: one for name, one in value.items() if name not in RECORDS}
    return _only_text(fields) or json.dumps(fields, ensure_ascii=False)


def _only_text(fields: Any) -> str | None:
    values = list(fields.values()) if isinstance(fields, dict) else []
    return values[0] if len(values) == 1 and isinstance(values[0], str) else None


def _result(span: Span) -> str | None:
    text, value = span.get("output.value"), span.json("output.value")
    return to_text(value) if isinstance(value, str) else text


DIALECT = Dialect(
    "dspy",
    ("\nopeninference.span.kind",),
    _read,
    written_by="OpenInference's instrumentor of DSPy",
    read_from="the attributes of `openinference`, in its own scope",
    kinds="those of `openinference`",
    missing="all fields that `openinference` reads correctly",
)
