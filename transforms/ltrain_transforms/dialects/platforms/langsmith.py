"""LangSmith: the spans of its SDK's own OpenTelemetry exporter (`LANGSMITH_OTEL_ENABLED`).

The attribute names are those of langsmith 0.4 to 0.15 (`_internal/otel/_otel_exporter.py`). It
writes whole inputs and outputs into `gen_ai.prompt` and `gen_ai.completion`. Its operation name
calls a retriever `embeddings` and a prompt template `chat`; `langsmith.span.kind` is the run's true
type.
"""

import re
from typing import Any

from ltrain_transforms.dialects import gen_ai
from ltrain_transforms.dialects.partial import Dialect, Kind, Partial, non_empty
from ltrain_transforms.dialects.platforms import payloads
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
        error_type=_error_class(span) if span.failed else None,
        agent=span.get(METADATA + "lc_agent_name"),
        node=span.get(METADATA + "langgraph_node"),
    )
    if kind == "llm":
        return {**partial, **_llm(span)}
    if kind == "tool":
        fields = non_empty(name=_name(span), arguments=_arguments(span), output=None)
        return {**partial, **fields, **parse_tool_result(_output(span))}
    return partial | non_empty(input=span.get(INPUT), output=span.get(OUTPUT))


def _error_class(span: Span) -> str | None:
    """Return the error's class: the exporter writes `Exception`, and the error in its message."""
    messages = (values.get("exception.message") for _, values in span.events)
    matches = (re.match(r"(\w+)\(", str(message)) for message in messages)
    return next((match.group(1) for match in matches if match), None)


def _name(span: Span) -> str:
    return span.get("langsmith.trace.name", "gen_ai.serialized.name") or span.name


def _llm(span: Span) -> Partial:
    reasons = span.get("gen_ai.response.finish_reasons")  # in 0.4 "stop, stop", not JSON
    return {
        **payloads.request_fields(span, INPUT),
        **payloads.response_fields(span, OUTPUT),
        **gen_ai.missing_llm_fields(span),
        **payloads.usage_fields(span.json(METADATA + "usage_metadata")),
        **non_empty(
            model=span.get("gen_ai.response.model", "gen_ai.request.model"),
            finish_reason=_first(reasons) if reasons else None,
        ),
    }


def _first(reasons: str) -> str | None:
    """Return the first reason of a JSON list, or of text with commas."""
    return gen_ai.finish_reason(reasons) or reasons.split(",")[0].strip()


def _arguments(span: Span) -> str | None:
    """Return a tool's arguments from the run's inputs; LangChain writes its text as `input`."""
    inputs: Any = span.json(INPUT)
    text = inputs.get("input") if isinstance(inputs, dict) and len(inputs) == 1 else None
    return text if isinstance(text, str) else span.get(INPUT)


def _output(span: Span) -> str | None:
    """Return a tool's result from the run's outputs, `{"output": ...}`."""
    outputs: Any = span.json(OUTPUT)
    if not isinstance(outputs, dict) or outputs.keys() != {"output"}:
        return span.get(OUTPUT)
    output = outputs["output"]
    return output if isinstance(output, str | None) else span.get(OUTPUT)


DIALECT = Dialect(
    "langsmith",
    ("\nlangsmith.span.kind",),
    _read,
    written_by="langsmith 0.4 to 0.15: its OTel exporter",
    read_from="`langsmith.*`, `gen_ai.prompt`, `gen_ai.completion`",
    kinds="llm, tool, retrieval, embedding, node",
    messages="OpenAI's and LangChain's, from the run's inputs and outputs",
    tokens="counts",
    missing="agents, except LangGraph's names in metadata",
)
