"""LangSmith: the spans of its SDK's own OpenTelemetry exporter (`LANGSMITH_OTEL_ENABLED`).

Attribute names are those of langsmith 0.4 (`_internal/otel/_otel_exporter.py`). It writes whole
inputs and outputs into `gen_ai.prompt` and `gen_ai.completion`, and an operation name that calls a
retriever `embeddings` and a prompt template `chat`; `langsmith.span.kind` is the run's true type.
"""

from typing import Any

from ltrain_transforms.dialects import chat, gen_ai
from ltrain_transforms.dialects.partial import Kind, Partial, non_empty
from ltrain_transforms.dialects.tool_results import parse_tool_result
from ltrain_transforms.spans import Span

KINDS: dict[str, Kind] = {
    "llm": "llm",
    "tool": "tool",
    "retriever": "retrieval",
    "embedding": "embedding",
    "chain": "node",
    "prompt": "node",
    "parser": "node",
}
MARKS = ("\nlangsmith.span.kind",)
IN, OUT, METADATA = "gen_ai.prompt", "gen_ai.completion", "langsmith.metadata."


def read(span: Span) -> Partial:
    """Say what `langsmith.*` says, and the exporter's own `gen_ai.*`."""
    kind = KINDS.get(span.get("langsmith.span.kind") or "")
    partial = non_empty(
        kind=kind,
        agent=span.get(METADATA + "lc_agent_name"),
        node=span.get(METADATA + "langgraph_node"),
    )
    if kind == "llm":
        return {**partial, **_llm(span)}
    if kind == "tool":
        told = non_empty(name=_name(span), arguments=_arguments(span), output=None)
        return {**partial, **told, **parse_tool_result(_output(span))}
    return partial | non_empty(input=span.get(IN), output=span.get(OUT))


def _name(span: Span) -> str:
    return span.get("langsmith.trace.name", "gen_ai.serialized.name") or span.name


def _llm(span: Span) -> Partial:
    reasons = span.get("gen_ai.response.finish_reasons")  # "stop, stop", not JSON
    return gen_ai.missing_llm_fields(span) | non_empty(
        model=span.get("gen_ai.response.model", "gen_ai.request.model"),
        input_messages=chat.chat_messages(IN, span.get(IN), "user"),
        output_messages=chat.chat_messages(OUT, span.get(OUT), "assistant"),
        finish_reason=reasons.split(",")[0].strip() if reasons else None,
    )


def _arguments(span: Span) -> str | None:
    """Take a tool's arguments out of the run's inputs; LangChain puts its text under `input`."""
    given: Any = span.json(IN)
    inside = given.get("input") if isinstance(given, dict) and len(given) == 1 else None
    return inside if isinstance(inside, str) else span.get(IN)


def _output(span: Span) -> str | None:
    """Take a tool's result out of the run's outputs, `{"output": ...}`."""
    given: Any = span.json(OUT)
    inside = given.get("output") if isinstance(given, dict) and len(given) == 1 else None
    return inside if isinstance(inside, str) else span.get(OUT)
