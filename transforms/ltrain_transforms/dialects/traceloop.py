"""Traceloop's own attributes, and the flattened messages of its releases before gen_ai 1.37."""

import json
from typing import Any

from ltrain_transforms.dialects import gen_ai
from ltrain_transforms.dialects.attribute_messages import flattened_messages, indices
from ltrain_transforms.dialects.partial import Dialect, Kind, Partial, non_empty
from ltrain_transforms.dialects.tool_payloads import parse_tool_result, unwrap_arguments
from ltrain_transforms.traces import Span

KINDS: dict[str, Kind] = {
    "workflow": "agent",
    "agent": "agent",
    "task": "node",
    "tool": "tool",
    "handoff": "tool",
}
OPERATIONS: dict[str, Kind] = {"execute_task": "node", "vector_db_retrieve": "retrieval"}
REQUESTS: dict[str, Kind] = {"chat": "llm", "completion": "llm", "embedding": "embedding"}
SDK_SCOPES = "opentelemetry.instrumentation."
"""The beginning of the scopes of traceloop's instrumentors of SDKs."""
ENVELOPE = {"tags", "metadata", "kwargs"}
"""Keys beside the query in LangChain's callback payload; the metadata has ids of checkpoints."""
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
    if span.get("traceloop.span.kind") == "handoff":
        # a tool without a name answers the one request that no other tool answers
        return {**partial, **non_empty(output=span.get("gen_ai.handoff.to_agent"))}
    if kind == "tool":
        fields = non_empty(
            name=entity, arguments=unwrap_arguments(span.get("traceloop.entity.input"))
        )
        return {**partial, **fields, **parse_tool_result(span.get("traceloop.entity.output"))}
    if kind == "retrieval":
        return partial | non_empty(name=entity, input=_query(span), output=_documents(span))
    if kind == "embedding":
        partial |= non_empty(input_tokens=span.integer("gen_ai.usage.prompt_tokens"))
    return partial | non_empty(
        input=span.get("traceloop.entity.input"), output=span.get("traceloop.entity.output")
    )


def _kind(span: Span) -> Kind | None:
    operation, request = span.get("gen_ai.operation.name"), span.get("llm.request.type")
    return (
        OPERATIONS.get(operation or "")
        or KINDS.get(span.get("traceloop.span.kind") or "")
        or REQUESTS.get(request or "")
        or ("llm" if not operation and not request and _is_response(span) else None)
    )


def _is_response(span: Span) -> bool:
    """Return whether a span is of the Responses API: older releases write no type of request."""
    return (
        span.scope.startswith(SDK_SCOPES)
        and span.get("traceloop.span.kind", "gen_ai.agent.name") is None
        and span.get("gen_ai.request.model", "gen_ai.response.model") is not None
        and (
            span.get("gen_ai.response.id") is not None
            or any(indices(span, prefix) for prefix in ("gen_ai.prompt", "gen_ai.completion"))
        )
    )


def _query(span: Span) -> str | None:
    """Return the query of a retrieval, without the payload around it."""
    payload: Any = span.json("traceloop.entity.input")
    query = payload.get("query") if isinstance(payload, dict) else None
    if isinstance(query, str) and payload.keys() <= {"query", *ENVELOPE}:
        return query
    return span.get("traceloop.entity.input")


def _documents(span: Span) -> str | None:
    """Return the documents of a retrieval as a JSON list, without their count."""
    payload: Any = span.json("traceloop.entity.output")
    documents = payload.get("documents") if isinstance(payload, dict) else None
    if isinstance(documents, list) and payload.keys() <= {"documents", "count", *ENVELOPE}:
        return json.dumps(documents, ensure_ascii=False)
    return span.get("traceloop.entity.output")


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
    (
        *("\ntraceloop.", "\nllm.request.", "\ngen_ai.prompt.", "\ngen_ai.task."),
        *("\ngen_ai.completion.", "\ngen_ai.response.id"),
    ),
    _read,
    written_by="traceloop's instrumentors, the flattened ones too",
    read_from="`traceloop.*`, `gen_ai.prompt.N`, `llm.request.type`",
    kinds="llm, tool, retrieval, embedding, agent, node",
    messages="flattened",
    tokens="counts",
)
