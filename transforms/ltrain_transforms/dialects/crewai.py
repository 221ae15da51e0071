"""CrewAI: corrections of the fields that OpenInference's instrumentor writes.

It writes an agent's role as a node, puts ids into the names of crews and flows, writes a task's
text only into its result, and gives tools their display names, not those that models request.
"""

import re
from typing import Any

from ltrain_transforms.dialects.partial import Dialect, Partial, non_empty
from ltrain_transforms.traces import Span

SCOPE = "openinference.instrumentation.crewai"

DELEGATION = ("delegate_work_to_coworker", "ask_question_to_coworker")
"""CrewAI's own tools; they fail with a text, without an exception."""
MAX_TOOL_NAME = 64
"""Longest tool name, in characters; CrewAI shortens longer ones with a hash."""

_ID = re.compile(r"_[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_HUMPS = re.compile(r"(?<=[A-Z])(?=[A-Z][a-z])|(?<=[a-z0-9])(?=[A-Z])")


def _read(span: Span) -> Partial:
    """Return the fields that correct those of `openinference`."""
    if span.scope != SCOPE:
        return {}
    kind = span.get("openinference.span.kind")
    if kind == "AGENT":
        return _agent(span)
    if kind == "TOOL":
        return _tool(span)
    node = _ID.sub("", span.name).removesuffix(".kickoff")
    return non_empty(name=node, node=node)


def _agent(span: Span) -> Partial:
    inputs, outputs = _object(span, "input.value"), _object(span, "output.value")
    task, context = outputs.get("description") or inputs.get("messages"), inputs.get("context")
    texts = [text for text in (task, context) if isinstance(text, str) and text]
    return non_empty(
        agent=span.get("graph.node.id"), input="\n\n".join(texts), output=outputs.get("raw")
    )


def _tool(span: Span) -> Partial:
    name = model_tool_name(span.get("tool.name") or "")
    failed = (span.get("output.value") or "").lstrip().startswith("Error executing")
    if name in DELEGATION and failed:
        return non_empty(name=name, status="error", error_type="tool_error")
    return non_empty(name=name)


def model_tool_name(name: str) -> str:
    """Return the name by which models request a tool."""
    snake = re.sub(r"[^a-z0-9_]", "_", re.sub(r"['\"]", "", _HUMPS.sub("_", name).lower()))
    name_for_model = re.sub(r"_+", "_", snake).strip("_")
    return name_for_model if 0 < len(name_for_model) <= MAX_TOOL_NAME else name


def _object(span: Span, attribute: str) -> dict[str, Any]:
    value = span.json(attribute)
    return value if isinstance(value, dict) else {}


DIALECT = Dialect(
    "crewai",
    ("\nopeninference.span.kind",),
    _read,
    written_by="OpenInference's instrumentor of CrewAI",
    read_from="the attributes of `openinference`, in its own scope",
    kinds="those of `openinference`",
    missing="all fields that `openinference` reads correctly",
)
