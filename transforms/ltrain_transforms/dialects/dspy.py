"""DSPy: corrections of the fields that OpenInference's instrumentor writes.

It writes the bound arguments of a Python method as a call's input, and results as JSON, so a text
has quotes.
"""

import json
from typing import Any

from ltrain_transforms.dialects.partial import Dialect, Partial, non_empty
from ltrain_transforms.dialects.tool_payloads import parse_tool_result
from ltrain_transforms.traces import Span, to_text

SCOPE = "openinference.instrumentation.dspy"

METHODS = (".__call__", ".acall", ".forward", ".aforward")
"""What follows the name of a tool or module in the names of its spans."""


def _read(span: Span) -> Partial:
    """Return the fields that correct those of `openinference`."""
    if span.scope != SCOPE:
        return {}
    kind, name = span.get("openinference.span.kind"), _name(span)
    if kind == "TOOL":
        fields = non_empty(name=span.get("tool.name") or name, arguments=_arguments(span))
        return {**fields, **parse_tool_result(_result(span))}
    if kind in ("CHAIN", "AGENT", "RETRIEVER"):
        return non_empty(name=name, input=_arguments(span), output=_result(span))
    return {}


def _name(span: Span) -> str:
    method = next((one for one in METHODS if span.name.endswith(one)), "")
    return span.name.removesuffix(method)


def _arguments(span: Span) -> str | None:
    """Return the keyword arguments inside `{"kwargs": {...}}`; another input unchanged."""
    bound: Any = span.json("input.value")
    if not isinstance(bound, dict) or not isinstance(bound.get("kwargs"), dict):
        return span.get("input.value")
    others = {name: value for name, value in bound.items() if name != "kwargs"}
    if not others.get("args"):
        others.pop("args", None)
    return json.dumps(others | bound["kwargs"], ensure_ascii=False)


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
