"""Langfuse: `langfuse.observation.*`, as its OpenTelemetry-based SDKs write it.

The attribute names are those of langfuse-python 3 to 5 (`langfuse/_client/attributes.py`) and of
@langfuse/tracing 4.2; they are the same.
"""

from ltrain_transforms.dialects.partial import Dialect, Kind, Parameters, Partial, non_empty
from ltrain_transforms.dialects.platforms import payloads
from ltrain_transforms.dialects.tool_payloads import parse_tool_result, unwrap_call
from ltrain_transforms.traces import Span

KINDS: dict[str, Kind] = {
    "generation": "llm",
    "tool": "tool",
    "retriever": "retrieval",
    "embedding": "embedding",
    "agent": "agent",
    "chain": "node",
    "span": "node",
}
"""Observation types that are calls; `event`, `evaluator` and `guardrail` are none."""
PREFIX = "langfuse.observation."
UNLIMITED = "Infinity"
"""The value of `max_tokens` where the request has none."""


def _read(span: Span) -> Partial:
    """Return the fields of `langfuse.observation.*`."""
    kind = KINDS.get((span.get(PREFIX + "type") or "").lower())
    partial = non_empty(
        kind=kind,
        agent=span.name if kind == "agent" else None,
        node=span.get(PREFIX + "metadata.langgraph_node"),
        version=span.get("langfuse.version"),
        status="error" if span.get(PREFIX + "level") == "ERROR" else None,
    )
    if kind == "llm":
        return {**partial, **_llm(span)}
    if kind == "tool":
        fields = non_empty(name=span.name, arguments=unwrap_call(span.get(PREFIX + "input")))
        return {**partial, **fields, **parse_tool_result(span.get(PREFIX + "output"))}
    if kind == "embedding":
        partial |= non_empty(input_tokens=_usage(span).get("input_tokens"))
    return partial | non_empty(input=span.get(PREFIX + "input"), output=span.get(PREFIX + "output"))


def _llm(span: Span) -> Partial:
    parameters = payloads.as_object(span.json(PREFIX + "model.parameters"))
    return {
        **payloads.request_fields(span, PREFIX + "input"),
        **payloads.response_fields(span, PREFIX + "output"),
        **_usage(span),
        **non_empty(
            model=span.get(PREFIX + "model.name"),
            params=Parameters.from_values(
                {name: value for name, value in parameters.items() if value != UNLIMITED}
            ),
        ),
    }


def _usage(span: Span) -> Partial:
    return payloads.usage_fields(span.json(PREFIX + "usage_details"))


DIALECT = Dialect(
    "langfuse",
    ("\nlangfuse.observation.",),
    _read,
    written_by="langfuse-python 3 to 5, langfuse-js 3 and 4",
    read_from="`langfuse.observation.*`",
    kinds="llm, tool, retrieval, embedding, agent, node",
    messages="those that the SDK was given",
    tokens="counts",
    missing="tool-call ids",
)
