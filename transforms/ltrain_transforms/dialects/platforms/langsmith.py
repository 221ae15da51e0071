"""LangSmith: the spans of its SDK's own OpenTelemetry exporter (`LANGSMITH_OTEL_ENABLED`).

The attribute names are those of langsmith 0.4 (`_internal/otel/_otel_exporter.py`). It writes whole
inputs and outputs into `gen_ai.prompt` and `gen_ai.completion`. Its operation name calls a
retriever `embeddings` and a prompt template `chat`; `langsmith.span.kind` is the run's true type.
"""

from typing import Any

from ltrain_transforms.dialects import chat, gen_ai
from ltrain_transforms.dialects.partial import Dialect, Kind, Partial, non_empty
from ltrain_transforms.dialects.tool_payloads import parse_tool_result
from ltrain_transforms.traces import Span

KINDS: dict[str, Kind] = {
    "llm": "llm",
    "tool": "tool",
    "retriever": "retrieval",
    "embedding": "embedding",
    "chain": "node",
    "prompt": "node",
    "parser": "node",
}
INPUT, OUTPUT, METADATA = "gen_ai.prompt", "gen_ai.completion", "langsmith.metadata."


def _read(span: Span) -> Partial:
    """Return the fields of `langsmith.*` and of the exporter's own `gen_ai.*`."""
    kind = KINDS.get(span.get("langsmith.span.kind") or "")
    partial = non_empty(
        kind=kind,
        agent=span.get(METADATA + "lc_agent_name"),
        node=span.get(METADATA + "langgraph_node"),
    )
    if kind == "llm":
        return {**partial, **_llm(span)}
    if kind == "tool":
        fields = non_empty(name=_name(span), arguments=_arguments(span), output=None)
        return {**partial, **fields, **parse_tool_result(_output(span))}
    return partial | non_empty(input=span.get(INPUT), output=span.get(OUTPUT))


def _name(span: Span) -> str:
    return span.get("langsmith.trace.name", "gen_ai.serialized.name") or span.name


def _llm(span: Span) -> Partial:
    reasons = span.get("gen_ai.response.finish_reasons")  # "stop, stop", not JSON
    return gen_ai.missing_llm_fields(span) | non_empty(
        model=span.get("gen_ai.response.model", "gen_ai.request.model"),
        input_messages=chat.chat_messages(INPUT, span.get(INPUT), "user"),
        output_messages=chat.chat_messages(OUTPUT, span.get(OUTPUT), "assistant"),
        finish_reason=reasons.split(",")[0].strip() if reasons else None,
    )


def _arguments(span: Span) -> str | None:
    """Return a tool's arguments from the run's inputs; LangChain writes its text as `input`."""
    inputs: Any = span.json(INPUT)
    text = inputs.get("input") if isinstance(inputs, dict) and len(inputs) == 1 else None
    return text if isinstance(text, str) else span.get(INPUT)


def _output(span: Span) -> str | None:
    """Return a tool's result from the run's outputs, `{"output": ...}`."""
    outputs: Any = span.json(OUTPUT)
    text = outputs.get("output") if isinstance(outputs, dict) and len(outputs) == 1 else None
    return text if isinstance(text, str) else span.get(OUTPUT)


DIALECT = Dialect(
    "langsmith",
    ("\nlangsmith.span.kind",),
    _read,
    written_by="langsmith 0.4's OTel exporter",
    read_from="`langsmith.*`, `gen_ai.prompt`, `gen_ai.completion`",
    kinds="llm, tool, retrieval, embedding, node",
    messages="OpenAI's and LangChain's, from the run's inputs and outputs",
    tokens="counts",
    missing="agents, except LangGraph's names in metadata",
)
