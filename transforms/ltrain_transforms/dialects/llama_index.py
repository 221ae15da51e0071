"""LlamaIndex, where OpenInference's instrumentor writes Python, not what a call's row has."""

import json
import re
from typing import Any

from ltrain_transforms.dialects.indexed import indices
from ltrain_transforms.dialects.partial import Partial, non_empty
from ltrain_transforms.spans import Span

SCOPE = "openinference.instrumentation.llama_index"
MARKS = ("\nopeninference.span.kind",)

_AGENT = re.compile(r".*, current_agent_name='([^']*)'", re.DOTALL)
"""The last field but the tools of the event that starts an agent's step."""
_OBJECT = re.compile(r"<[\w.]+ object at 0x[0-9a-f]+>")
"""What a workflow passes to a tool, and no model asked for: its context."""


def is_internal(span: Span) -> bool:
    """Say whether a span is of a method that another one's public method calls, of one call."""
    return span.scope == SCOPE and "._" in span.name


def read(span: Span) -> Partial:
    """Say what is better known than OpenInference's own names say."""
    if span.scope != SCOPE or is_internal(span):
        return {}
    kind = span.get("openinference.span.kind")
    if kind == "TOOL":
        return _tool(span)
    if kind == "RETRIEVER":
        return non_empty(name=span.name.partition(".")[0], output=_documents(span))
    return non_empty(agent=_agent(span)) if kind == "CHAIN" else {}


def _tool(span: Span) -> Partial:
    given, gave = _object(span, "input.value"), _object(span, "output.value")
    named, blocks = _asked(given.get("kwargs")), gave.get("blocks")
    texts = [block.get("text") for block in blocks or () if isinstance(block, dict)]
    whole = bool(texts) and all(isinstance(text, str) for text in texts)
    return non_empty(
        arguments=None if named is None else json.dumps(named, ensure_ascii=False),
        output="\n".join(map(str, texts)) if whole else None,
    )


def _asked(named: Any) -> dict[str, Any] | None:
    if not isinstance(named, dict):
        return None
    return {key: value for key, value in named.items() if not _OBJECT.fullmatch(str(value))}


def _agent(span: Span) -> str | None:
    """Give the agent whose step it is; of a workflow's other steps nobody's."""
    event = _object(span, "input.value").get("ev")
    if not isinstance(event, str) or not event.startswith("AgentSetup("):
        return None
    found = _AGENT.match(event)
    return found[1] if found else None


def _documents(span: Span) -> str | None:
    """Give what was found, without the ids that an index in memory makes anew each time."""
    at = "retrieval.documents"
    texts = [span.get(f"{at}.{n}.document.content") for n in indices(span, at)]
    return json.dumps(texts, ensure_ascii=False) if texts else None


def _object(span: Span, attribute: str) -> dict[str, Any]:
    value = span.json(attribute)
    return value if isinstance(value, dict) else {}
