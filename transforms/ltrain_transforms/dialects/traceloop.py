"""Traceloop's own attributes, and the flattened messages of its releases before gen_ai 1.37."""

import json

from ltrain_transforms.dialects import gen_ai
from ltrain_transforms.dialects.indexed import flattened_messages, indices
from ltrain_transforms.dialects.partial import Dialect, Kind, Partial, non_empty
from ltrain_transforms.dialects.tool_payloads import parse_tool_result, unwrap_arguments
from ltrain_transforms.traces import Span

KINDS: dict[str, Kind] = {"workflow": "agent", "agent": "agent", "task": "node", "tool": "tool"}
OPERATIONS: dict[str, Kind] = {"execute_task": "node", "vector_db_retrieve": "retrieval"}
REQUESTS: dict[str, Kind] = {"chat": "llm", "completion": "llm", "embedding": "embedding"}
ASSOCIATION = "traceloop.association.properties."


def _read(span: Span) -> Partial:
    """Return the fields of `traceloop.*` and of the older `gen_ai.prompt.N`."""
    kind = _kind(span)
    entity = span.get("traceloop.entity.name")
    partial = non_empty(
        kind=kind,
        agent=span.get(ASSOCIATION + "lc_agent_name") or (entity if kind == "agent" else None),
        node=span.get(ASSOCIATION + "langgraph_node"),
        status="error" if span.get("gen_ai.task.status") == "failure" else None,
    )
    if kind == "llm":
        return {**partial, **_llm(span)}
    if kind == "tool":
        fields = non_empty(
            name=entity, arguments=unwrap_arguments(span.get("traceloop.entity.input"))
        )
        return {**partial, **fields, **parse_tool_result(span.get("traceloop.entity.output"))}
    return partial | non_empty(
        input=span.get("traceloop.entity.input"), output=span.get("traceloop.entity.output")
    )


def _kind(span: Span) -> Kind | None:
    return (
        KINDS.get(span.get("traceloop.span.kind") or "")
        or OPERATIONS.get(span.get("gen_ai.operation.name") or "")
        or REQUESTS.get(span.get("llm.request.type") or "")
    )


def _llm(span: Span) -> Partial:
    return gen_ai.missing_llm_fields(span) | non_empty(
        input_messages=flattened_messages(span, "gen_ai.prompt"),
        output_messages=flattened_messages(span, "gen_ai.completion"),
        tools=_tools(span),
        finish_reason=span.get("gen_ai.completion.0.finish_reason"),
        input_tokens=span.integer("gen_ai.usage.prompt_tokens"),
        output_tokens=span.integer("gen_ai.usage.completion_tokens"),
    )


def _tools(span: Span) -> str | None:
    prefix = "llm.request.functions"
    definitions = [
        {
            "name": span.get(f"{prefix}.{n}.name"),
            "parameters": span.json(f"{prefix}.{n}.parameters") or {},
        }
        for n in indices(span, prefix)
    ]
    return json.dumps(definitions) if definitions else None


DIALECT = Dialect(
    "traceloop",
    ("\ntraceloop.", "\nllm.request.", "\ngen_ai.prompt.", "\ngen_ai.task."),
    _read,
    written_by="traceloop's instrumentors, the flattened ones too",
    read_from="`traceloop.*`, `gen_ai.prompt.N`, `llm.request.type`",
    kinds="llm, tool, retrieval, embedding, agent, node",
    messages="flattened",
    tokens="counts",
)
