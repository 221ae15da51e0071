"""CrewAI, where OpenInference's instrumentor writes more or less than a call's row should have.

An agent's role is written as a node there, crews and flows have their ids in their names, a task's
text is in its result alone, and tools have the names that people read, not those models ask for.
"""

import re
from typing import Any

from ltrain_transforms.dialects.partial import Partial, non_empty
from ltrain_transforms.spans import Span

SCOPE = "openinference.instrumentation.crewai"
MARKS = ("\nopeninference.span.kind",)

DELEGATION = ("delegate_work_to_coworker", "ask_question_to_coworker")
"""Tools of CrewAI's own; they fail with a text, and no exception."""
MAX_TOOL_NAME = 64
"""Of a tool's name as models see it; of longer ones CrewAI makes a hash."""

_ID = re.compile(r"_[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_HUMPS = re.compile(r"(?<=[A-Z])(?=[A-Z][a-z])|(?<=[a-z0-9])(?=[A-Z])")


def read(span: Span) -> Partial:
    """Say what is better known than OpenInference's own names say."""
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
    given, gave = _object(span, "input.value"), _object(span, "output.value")
    task, context = gave.get("description") or given.get("messages"), given.get("context")
    texts = [text for text in (task, context) if isinstance(text, str) and text]
    return non_empty(
        agent=span.get("graph.node.id"),
        input="\n\n".join(texts),
        output=gave.get("raw"),
    )


def _tool(span: Span) -> Partial:
    name = model_tool_name(span.get("tool.name") or "")
    failed = (span.get("output.value") or "").lstrip().startswith("Error executing")
    if name in DELEGATION and failed:
        return non_empty(name=name, status="error", error_type="tool_error")
    return non_empty(name=name)


def model_tool_name(name: str) -> str:
    """Give a tool's name as models ask for it."""
    snake = re.sub(r"[^a-z0-9_]", "_", re.sub(r"['\"]", "", _HUMPS.sub("_", name).lower()))
    found = re.sub(r"_+", "_", snake).strip("_")
    return found if 0 < len(found) <= MAX_TOOL_NAME else name


def _object(span: Span, attribute: str) -> dict[str, Any]:
    value = span.json(attribute)
    return value if isinstance(value, dict) else {}
