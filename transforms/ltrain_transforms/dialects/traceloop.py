"""Traceloop's own attributes, and the flattened messages of its releases before gen_ai 1.37."""

import json
from typing import Any

from ltrain_transforms.dialects.indexed import indices, message, tool_call
from ltrain_transforms.dialects.partial import Kind, Message, Partial, said
from ltrain_transforms.dialects.tool_results import unwrap
from ltrain_transforms.spans import Span

KINDS: dict[str, Kind] = {"workflow": "agent", "agent": "agent", "task": "node", "tool": "tool"}
OPERATIONS: dict[str, Kind] = {"execute_task": "node", "vector_db_retrieve": "retrieval"}
REQUESTS: dict[str, Kind] = {"chat": "llm", "completion": "llm", "embedding": "embedding"}
ASSOCIATION = "traceloop.association.properties."


def read(span: Span) -> Partial:
    """Say what the `traceloop.*` and the older `gen_ai.prompt.N` attributes say."""
    kind = _kind(span)
    entity = span.get("traceloop.entity.name")
    partial = said(
        kind=kind,
        agent=span.get(ASSOCIATION + "lc_agent_name") or (entity if kind == "agent" else None),
        node=span.get(ASSOCIATION + "langgraph_node"),
        status="error" if span.get("gen_ai.task.status") == "failure" else None,
    )
    if kind == "llm":
        return {**partial, **_llm(span)}
    if kind == "tool":
        fields = said(name=entity, arguments=_tool_input(span))
        return {**partial, **fields, **unwrap(span.get("traceloop.entity.output"))}
    return partial | said(
        input=span.get("traceloop.entity.input"), output=span.get("traceloop.entity.output")
    )


def _kind(span: Span) -> Kind | None:
    return (
        KINDS.get(span.get("traceloop.span.kind") or "")
        or OPERATIONS.get(span.get("gen_ai.operation.name") or "")
        or REQUESTS.get(span.get("llm.request.type") or "")
    )


def _llm(span: Span) -> Partial:
    return said(
        input_messages=_messages(span, "gen_ai.prompt"),
        output_messages=_messages(span, "gen_ai.completion"),
        tools=_tools(span),
        finish_reason=span.get("gen_ai.completion.0.finish_reason"),
        input_tokens=span.whole("gen_ai.usage.prompt_tokens"),
        output_tokens=span.whole("gen_ai.usage.completion_tokens"),
    )


def _tools(span: Span) -> str | None:
    at = "llm.request.functions"
    given = [
        {
            "name": span.get(f"{at}.{n}.name"),
            "parameters": span.json(f"{at}.{n}.parameters") or {},
        }
        for n in indices(span, at)
    ]
    return json.dumps(given) if given else None


def _messages(span: Span, prefix: str) -> list[Message]:
    return [_message(span, f"{prefix}.{n}") for n in indices(span, prefix)]


def _message(span: Span, at: str) -> Message:
    calls = [
        tool_call(span, f"{at}.tool_calls.{k}", "name", "arguments")
        for k in indices(span, f"{at}.tool_calls")
    ]
    role, text = span.get(f"{at}.role"), span.get(f"{at}.content")
    return message(role, text, calls, span.get(f"{at}.tool_call_id"))


def _tool_input(span: Span) -> str | None:
    """Take the arguments out of LangChain's callback payload."""
    payload: Any = span.json("traceloop.entity.input")
    if isinstance(payload, dict) and "input_str" in payload:
        return str(payload["input_str"])
    return span.get("traceloop.entity.input")
