"""Langfuse: `langfuse.observation.*`, as its SDKs write it since they are OpenTelemetry's.

Attribute names are those of langfuse-python 3 (`langfuse/_client/attributes.py`) and of
@langfuse/tracing 4.2, which has the same.
"""

from ltrain_transforms.dialects import chat
from ltrain_transforms.dialects.partial import Kind, Parameters, Partial, non_empty
from ltrain_transforms.dialects.tool_results import parse_tool_result
from ltrain_transforms.spans import Span
from ltrain_transforms.untrusted import INTEGER_LIMIT

KINDS: dict[str, Kind] = {
    "generation": "llm",
    "tool": "tool",
    "retriever": "retrieval",
    "embedding": "embedding",
    "agent": "agent",
    "chain": "node",
    "span": "node",
}
"""Observation types that are calls; `event`, `evaluator` and `guardrail` are structure."""
MARKS = ("\nlangfuse.observation.",)
AT = "langfuse.observation."


def read(span: Span) -> Partial:
    """Say what `langfuse.observation.*` says."""
    kind = KINDS.get((span.get(AT + "type") or "").lower())
    partial = non_empty(
        kind=kind,
        agent=span.name if kind == "agent" else None,
        node=span.get(AT + "metadata.langgraph_node"),
        version=span.get("langfuse.version"),
        status="error" if span.get(AT + "level") == "ERROR" else None,
    )
    if kind == "llm":
        return {**partial, **_llm(span)}
    if kind == "tool":
        told = non_empty(name=span.name, arguments=span.get(AT + "input"))
        return {**partial, **told, **parse_tool_result(span.get(AT + "output"))}
    return partial | non_empty(input=span.get(AT + "input"), output=span.get(AT + "output"))


def _llm(span: Span) -> Partial:
    usage, parameters = span.json(AT + "usage_details"), span.json(AT + "model.parameters")
    counts = usage if isinstance(usage, dict) else {}
    return non_empty(
        model=span.get(AT + "model.name"),
        params=Parameters.of(parameters) if isinstance(parameters, dict) else None,
        input_messages=chat.chat_messages(AT + "input", span.get(AT + "input"), "user"),
        output_messages=chat.chat_messages(AT + "output", span.get(AT + "output"), "assistant"),
        input_tokens=_first(counts, "input", "prompt_tokens", "input_tokens"),
        output_tokens=_first(counts, "output", "completion_tokens", "output_tokens"),
        reasoning_tokens=_first(counts, "output_reasoning_tokens", "output_reasoning"),
        cached_tokens=_first(counts, "input_cached_tokens", "input_cache_read"),
    )


def _first(counts: dict[str, object], *names: str) -> int | None:
    """Give the first count; SDKs pass on whichever names the provider has."""
    given = (counts.get(name) for name in names)
    return next((n for n in given if type(n) is int and 0 <= n < INTEGER_LIMIT), None)
