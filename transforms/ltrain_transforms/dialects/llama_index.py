"""LlamaIndex: corrections where OpenInference's instrumentor writes Python objects as text."""

import json
import re
from typing import Any

from ltrain_transforms.dialects.attribute_messages import indices
from ltrain_transforms.dialects.partial import Dialect, Partial, non_empty
from ltrain_transforms.traces import Span

SCOPE = "openinference.instrumentation.llama_index"

_AGENT = re.compile(r".*, current_agent_name='([^']*)'", re.DOTALL)
"""The agent's name in the event that starts its step: the last field before the tools."""
_OBJECT = re.compile(r"<[\w.]+ object at 0x[0-9a-f]+>")
"""An argument that a workflow passes to a tool and no model wrote: its context."""


def is_internal(span: Span) -> bool:
    """Return whether a span is of a private method: its public method has a span of its own."""
    return span.scope == SCOPE and "._" in span.name


def _read(span: Span) -> Partial:
    """Return the fields that correct those of `openinference`."""
    if span.scope != SCOPE or is_internal(span):
        return {}
    kind = span.get("openinference.span.kind")
    if kind == "TOOL":
        return _tool(span)
    if kind == "RETRIEVER":
        return non_empty(name=span.name.partition(".")[0], output=_documents(span))
    return non_empty(agent=_agent(span)) if kind == "CHAIN" else {}


def _tool(span: Span) -> Partial:
    inputs, outputs = _object(span, "input.value"), _object(span, "output.value")
    arguments, blocks = _arguments(inputs.get("kwargs")), outputs.get("blocks")
    texts = [block.get("text") for block in blocks or () if isinstance(block, dict)]
    all_text = bool(texts) and all(isinstance(text, str) for text in texts)
    return non_empty(
        arguments=None if arguments is None else json.dumps(arguments, ensure_ascii=False),
        output="\n".join(map(str, texts)) if all_text else None,
    )


def _arguments(keywords: Any) -> dict[str, Any] | None:
    if not isinstance(keywords, dict):
        return None
    return {key: value for key, value in keywords.items() if not _OBJECT.fullmatch(str(value))}


def _agent(span: Span) -> str | None:
    """Return the agent whose step the span is; None for a workflow's other steps."""
    event = _object(span, "input.value").get("ev")
    if not isinstance(event, str) or not event.startswith("AgentSetup("):
        return None
    match = _AGENT.match(event)
    return match[1] if match else None


def _documents(span: Span) -> str | None:
    """Return the documents as JSON, without ids: an in-memory index makes new ones each time."""
    prefix = "retrieval.documents"
    texts = [span.get(f"{prefix}.{n}.document.content") for n in indices(span, prefix)]
    return json.dumps(texts, ensure_ascii=False) if texts else None


def _object(span: Span, attribute: str) -> dict[str, Any]:
    value = span.json(attribute)
    return value if isinstance(value, dict) else {}


DIALECT = Dialect(
    "llama_index",
    ("\nopeninference.span.kind",),
    _read,
    written_by="OpenInference's instrumentor of LlamaIndex",
    read_from="the attributes of `openinference`, in its own scope",
    kinds="those of `openinference`",
    missing="all fields that `openinference` reads correctly",
)
