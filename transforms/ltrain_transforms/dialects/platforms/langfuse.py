"""Langfuse: `langfuse.observation.*`, as its OpenTelemetry-based SDKs write it.

The attribute names are those of langfuse-python 3 (`langfuse/_client/attributes.py`) and of
@langfuse/tracing 4.2; they are the same.
"""

from ltrain_transforms.dialects import chat
from ltrain_transforms.dialects.partial import Dialect, Kind, Parameters, Partial, non_empty
from ltrain_transforms.dialects.tool_payloads import parse_tool_result
from ltrain_transforms.traces import INTEGER_LIMIT, Span

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
INPUT_COUNTS = ("input", "prompt_tokens", "input_tokens")
"""The providers' names of the number of input tokens."""


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
        fields = non_empty(name=span.name, arguments=span.get(PREFIX + "input"))
        return {**partial, **fields, **parse_tool_result(span.get(PREFIX + "output"))}
    if kind == "embedding":
        partial |= non_empty(input_tokens=_first(_counts(span), *INPUT_COUNTS))
    return partial | non_empty(input=span.get(PREFIX + "input"), output=span.get(PREFIX + "output"))


def _llm(span: Span) -> Partial:
    counts, parameters = _counts(span), span.json(PREFIX + "model.parameters")
    return non_empty(
        model=span.get(PREFIX + "model.name"),
        params=Parameters.from_values(parameters) if isinstance(parameters, dict) else None,
        input_messages=chat.chat_messages(PREFIX + "input", span.get(PREFIX + "input"), "user"),
        output_messages=chat.chat_messages(
            PREFIX + "output", span.get(PREFIX + "output"), "assistant"
        ),
        input_tokens=_first(counts, *INPUT_COUNTS),
        output_tokens=_first(counts, "output", "completion_tokens", "output_tokens"),
        reasoning_tokens=_first(counts, "output_reasoning_tokens", "output_reasoning"),
        cached_tokens=_first(counts, "input_cached_tokens", "input_cache_read"),
    )


def _counts(span: Span) -> dict[str, object]:
    usage = span.json(PREFIX + "usage_details")
    return usage if isinstance(usage, dict) else {}


def _first(counts: dict[str, object], *names: str) -> int | None:
    """Return the first count; SDKs pass on the provider's names."""
    values = (counts.get(name) for name in names)
    return next((n for n in values if type(n) is int and 0 <= n < INTEGER_LIMIT), None)


DIALECT = Dialect(
    "langfuse",
    ("\nlangfuse.observation.",),
    _read,
    written_by="langfuse-python and -js, 3 and 4",
    read_from="`langfuse.observation.*`",
    kinds="llm, tool, retrieval, embedding, agent, node",
    messages="those that the SDK was given",
    tokens="counts",
    missing="tool-call ids",
)
