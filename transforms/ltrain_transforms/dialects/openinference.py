"""OpenInference: Arize's conventions, as its instrumentors write them."""

from typing import Any

from ltrain_transforms.dialects import agent_runs, crewai, llama_index
from ltrain_transforms.dialects.attribute_messages import (
    AttributeMessages,
    build_message,
    indices,
    read_tool_call,
)
from ltrain_transforms.dialects.partial import (
    Dialect,
    Kind,
    Parameters,
    Partial,
    as_text,
    non_empty,
)
from ltrain_transforms.dialects.tool_payloads import parse_tool_result
from ltrain_transforms.traces import Fields, Span, tool_requests

KINDS: dict[str, Kind] = {
    "LLM": "llm",
    "TOOL": "tool",
    "RETRIEVER": "retrieval",
    "EMBEDDING": "embedding",
    "AGENT": "agent",
    "CHAIN": "node",
}

AGENTS_AS_NODES = (agent_runs.AUTOGEN, crewai.SCOPE, "openinference.instrumentation.agno")
"""Scopes that write an agent's name, role or id as a node of a graph."""
MIXED_PARAMETERS = ("openinference.instrumentation.litellm", llama_index.SCOPE)
"""Scopes that also write other settings as parameters: a router's addresses, model sizes."""
SAMPLING = frozenset(
    {
        *("temperature", "top_p", "top_k", "min_p", "n", "seed", "stop"),
        *("max_tokens", "max_completion_tokens", "reasoning_effort", "thinking"),
        *("presence_penalty", "frequency_penalty", "logit_bias", "logprobs", "top_logprobs"),
        *("response_format", "tool_choice", "parallel_tool_calls", "stream", "stream_options"),
    }
)
"""Sampling parameters: those that change an answer."""

LANGCHAIN_IDS = ("lc_run-", "run-")
"""Beginnings of the ids that LangChain makes where a response, such as a stream, has none."""


def _read(span: Span) -> Partial:
    """Return the fields of `openinference.span.kind` and its attributes."""
    kind = KINDS.get(span.get("openinference.span.kind") or "")
    if kind is None or llama_index.is_internal(span):
        return {}
    if kind == "node" and span.scope == agent_runs.SMOLAGENTS:
        return {}  # a step of smolagents' loop is not a node: it encloses an LLM call and its tools
    metadata = span.json("metadata")
    partial = non_empty(
        kind=kind, **_place(span, kind, metadata if isinstance(metadata, dict) else {})
    )
    if kind == "llm":
        return {**partial, **_llm(span)}
    if kind == "tool":
        return {**partial, **_tool(span)}
    if kind == "embedding":
        partial |= non_empty(input_tokens=span.integer("llm.token_count.prompt"))
    return partial | non_empty(input=agent_runs.run_input(span), output=agent_runs.run_output(span))


def _place(span: Span, kind: Kind, metadata: dict[str, Any]) -> dict[str, str | None]:
    node = as_text(metadata.get("langgraph_node")) or span.get("graph.node.id")
    if span.scope in AGENTS_AS_NODES and kind == "agent":
        node = None
    agent = span.get("agent.name") or as_text(metadata.get("lc_agent_name"))
    return {
        "agent": agent
        or (agent_runs.run_agent(span) if kind == "agent" and node is None else None),
        "node": node,
    }


def _llm(span: Span) -> Partial:
    parameters, output = span.json("llm.invocation_parameters"), span.json("output.value")
    output_messages = _messages(span, "llm.output_messages")
    return non_empty(
        input_messages=_messages(span, "llm.input_messages"),
        output_messages=output_messages,
        params=_sampling(span, parameters if isinstance(parameters, dict) else {}),
        tools=_tools(span),
        model=span.get("llm.model_name"),
        finish_reason=_finish(span.get("llm.finish_reason"), output, output_messages),
        input_tokens=span.integer("llm.token_count.prompt"),
        output_tokens=span.integer("llm.token_count.completion"),
        reasoning_tokens=span.integer("llm.token_count.completion_details.reasoning"),
        cached_tokens=span.integer("llm.token_count.prompt_details.cache_read"),
        response_id=_response_id(output),
    )


def _finish(
    reason: str | None, output: Any, output_messages: AttributeMessages | None
) -> str | None:
    """Return the reason; for the responses API, which has none, OpenInference writes the status."""
    response = isinstance(output, dict) and output.get("object") == "response"
    if response and reason == "stop" and output_messages is not None:
        return "tool_calls" if tool_requests(output_messages.messages) else reason
    return reason


def _tool(span: Span) -> Partial:
    fields = non_empty(
        name=span.get("tool.name"),
        arguments=agent_runs.tool_arguments(span),
        tool_call_id=span.get("tool.id"),
    )
    return {**fields, **parse_tool_result(span.get("output.value"), span.scope)}


def _tools(span: Span) -> str | None:
    definitions = (span.get(f"llm.tools.{n}.tool.json_schema") for n in indices(span, "llm.tools"))
    schemas = [schema for schema in definitions if schema]
    return f"[{', '.join(schemas)}]" if schemas else None


def _messages(span: Span, prefix: str) -> AttributeMessages | None:
    messages = [_message(span, f"{prefix}.{n}.message") for n in indices(span, prefix)]
    return AttributeMessages.from_list(prefix, messages)


def _message(span: Span, at: str) -> Fields:
    calls = [
        read_tool_call(
            span, f"{at}.tool_calls.{k}.tool_call", "function.name", "function.arguments"
        )
        for k in indices(span, f"{at}.tool_calls")
    ]
    texts: list[str] = []
    reasoning: list[str] = []
    for m in indices(span, f"{at}.contents"):
        content = f"{at}.contents.{m}.message_content"
        is_reasoning = span.get(f"{content}.type") == "reasoning"
        (reasoning if is_reasoning else texts).append(span.get(f"{content}.text") or "")
    text = span.get(f"{at}.content") or "".join(texts)
    thoughts = [{"type": "reasoning", "content": one} for one in reasoning if one]
    role, tool_call_id = span.get(f"{at}.role"), span.get(f"{at}.tool_call_id")
    return build_message(role, text, calls, tool_call_id, thoughts)


def _sampling(span: Span, parameters: dict[str, Any]) -> Parameters | None:
    if span.scope in MIXED_PARAMETERS:
        return Parameters.from_values({k: v for k, v in parameters.items() if k in SAMPLING})
    excluded = ("tools", "functions", "messages", "input", "model", "model_name", "_type")
    return Parameters.from_values({k: v for k, v in parameters.items() if k not in excluded})


def _response_id(output: Any) -> str | None:
    if not isinstance(output, dict):
        return None
    if isinstance(output.get("id"), str):
        return str(output["id"])
    try:
        kwargs = output["generations"][0][0]["message"]["kwargs"]
    except (KeyError, IndexError, TypeError):
        return None
    metadata = kwargs.get("response_metadata") or {}
    response_id = str(metadata.get("id") or kwargs.get("id") or "")
    return None if response_id.startswith(LANGCHAIN_IDS) else response_id or None


DIALECT = Dialect(
    "openinference",
    ("\nopeninference.span.kind",),
    _read,
    written_by="Arize's instrumentors",
    read_from="`openinference.span.kind`, `llm.*`, `input.value`, `metadata`",
    kinds="llm, tool, retrieval, embedding, agent, node",
    messages="flattened",
    tokens="counts",
)
