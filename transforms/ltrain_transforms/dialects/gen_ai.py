"""OpenTelemetry's gen_ai and MCP conventions, as the official instrumentors write them."""

from functools import lru_cache

from ltrain_transforms.dialects.agent_runs import STRANDS
from ltrain_transforms.dialects.attribute_messages import AttributeMessages
from ltrain_transforms.dialects.partial import Dialect, Kind, Parameters, Partial, non_empty
from ltrain_transforms.dialects.tool_payloads import (
    join_blocks,
    parse_tool_result,
    unwrap_arguments,
)
from ltrain_transforms.traces import Fields, Span, new_message, parse_json

KINDS: dict[str, Kind] = {
    "chat": "llm",
    "text_completion": "llm",
    "generate_content": "llm",
    "execute_tool": "tool",
    "retrieval": "retrieval",
    "embeddings": "embedding",
    "invoke_agent": "agent",
    "invoke_workflow": "agent",
    "execute_task": "node",
    "vector_db_retrieve": "retrieval",
}

KIND_OPERATIONS: dict[Kind, str] = {
    "llm": "chat",
    "tool": "execute_tool",
    "retrieval": "retrieval",
    "embedding": "embeddings",
    "agent": "invoke_agent",
}
"""The operation that names each kind, in `gen_ai.operation.name`."""


MERGED_TOOLS = "(merged tools)"
"""google-adk's name of a span that repeats the results of parallel tools; it is not a call."""
ADK = "gcp.vertex.agent."
"""The beginning of google-adk's own attributes."""
NO_ID = "<not specified>"
"""google-adk's tool-call id of a tool that raised."""


def _read(span: Span) -> Partial:
    """Return the fields of the `gen_ai.*` attributes."""
    kind = _kind(span)
    partial = non_empty(
        kind=kind,
        agent=span.get("gen_ai.agent.name"),
        version=span.get("gen_ai.agent.version"),
        model=span.get("gen_ai.response.model", "gen_ai.request.model"),
        endpoint=_endpoint(span),
        error_type=span.get("error.type"),
        status="error" if span.get("error.type") else None,
    )
    if kind == "llm":
        return {**partial, **llm_fields(span)}
    if kind == "tool":
        return {**partial, **_tool(span)}
    if kind == "embedding":
        partial |= non_empty(input_tokens=span.integer(*EMBEDDED))
    if kind == "retrieval":
        partial |= non_empty(input=span.get("gen_ai.retrieval.query.text"))
        partial |= non_empty(output=span.get("gen_ai.retrieval.documents"))
    return partial


def _kind(span: Span) -> Kind | None:
    if span.get("mcp.method.name") == "tools/call":
        return "tool"
    if span.get("gen_ai.tool.name") == MERGED_TOOLS:
        return None
    return KINDS.get(span.get("gen_ai.operation.name") or "")


def llm_fields(span: Span) -> Partial:
    """Return the fields of an LLM call, whichever dialect knows that the span is one."""
    output = attribute_messages(span, "gen_ai.output.messages")
    return non_empty(
        input_messages=attribute_messages(span, "gen_ai.input.messages", instructions(span)),
        output_messages=output,
        params=request_parameters(span),
        tools=span.get("gen_ai.tool.definitions"),
        finish_reason=_finish(span, output),
        input_tokens=span.integer("gen_ai.usage.input_tokens"),
        output_tokens=span.integer("gen_ai.usage.output_tokens"),
        reasoning_tokens=span.integer(*REASONING),
        cached_tokens=span.integer(*CACHED),
        response_id=span.get("gen_ai.response.id"),
    )


def missing_llm_fields(span: Span) -> Partial:
    """Return `llm_fields` where this dialect does not know that the span is an LLM call."""
    return {} if _kind(span) == "llm" else llm_fields(span)


def _tool(span: Span) -> Partial:
    text = span.get("gen_ai.tool.call.result", "gcp.vertex.agent.tool_response")
    result = parse_tool_result(join_blocks(text) if span.scope == STRANDS else text, span.scope)
    id, failed = span.get("gen_ai.tool.call.id"), span.get("gen_ai.tool.status") == "error"
    return {
        **non_empty(
            name=span.get("gen_ai.tool.name"),
            arguments=_arguments(span),
            tool_call_id=None if id == NO_ID else id,
            status="error" if failed else None,
        ),
        **result,
    }


def _arguments(span: Span) -> str | None:
    """Return a tool's arguments; OpenInference's Agents SDK instrumentor may write its schema."""
    arguments = span.get("gen_ai.tool.call.arguments", ADK + "tool_call_args")
    return None if arguments == span.get("tool.parameters") else unwrap_arguments(arguments)


def attribute_messages(
    span: Span, name: str, system: list[Fields] | None = None
) -> AttributeMessages | None:
    """Return the messages of an attribute that holds them as JSON; None where it is absent."""
    raw = span.get(name)
    if raw is None:
        return AttributeMessages.from_list(name, system or [])
    return AttributeMessages(name, raw, system or [])


def instructions(span: Span) -> list[Fields]:
    """Return the system's instructions as a message."""
    parts = span.json("gen_ai.system_instructions")
    return [new_message("system", parts)] if isinstance(parts, list) and parts else []


REQUEST = "gen_ai.request."
EMBEDDED = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens")
# the names of the conventions, of traceloop and of pydantic-ai
REASONING = (
    "gen_ai.usage.reasoning.output_tokens",
    "gen_ai.usage.reasoning_tokens",
    "gen_ai.usage.details.reasoning_tokens",
)
CACHED = (
    "gen_ai.usage.cache_read.input_tokens",
    "gen_ai.usage.cache_read_input_tokens",
    "gen_ai.usage.details.cache_read_tokens",
)


def request_parameters(span: Span) -> Parameters | None:
    """Return the sampling parameters of the request, by their short names."""
    pairs = [pair for pair in span.attributes.items() if pair[0].startswith(REQUEST)]
    return _parameters(tuple(pairs))


@lru_cache(maxsize=1024)  # one process uses the same parameters again and again
def _parameters(pairs: tuple[tuple[str, str], ...]) -> Parameters | None:
    values = {name.removeprefix(REQUEST): parse_json(text) for name, text in pairs}
    return Parameters.from_values(
        {name: value for name, value in values.items() if name != "model"}
    )


def _finish(span: Span, output: AttributeMessages | None) -> str | None:
    reasons = span.get("gen_ai.response.finish_reasons")
    if reasons is not None:
        reason = finish_reason(reasons)
        if reason is not None:
            return reason
    if output is None:
        return None
    recorded = (message.finish_reason for message in output.messages)
    return next((_spelled(reason) for reason in recorded if reason), None)


@lru_cache(maxsize=256)
def finish_reason(reasons: str) -> str | None:
    """Return the first reason of a JSON list."""
    parsed = parse_json(reasons)
    return _spelled(str(parsed[0])) if isinstance(parsed, list) and parsed else None


def _spelled(reason: str) -> str:
    # traceloop writes tool_call where OpenAI and everyone else write tool_calls
    return "tool_calls" if reason == "tool_call" else reason


def _endpoint(span: Span) -> str | None:
    address, port = span.get("server.address"), span.get("server.port")
    if address:
        return f"{address}:{port}" if port else address
    return span.get("gen_ai.openai.api_base")


DIALECT = Dialect(
    "gen_ai",
    ("\ngen_ai.", "\nmcp.method.", "\nerror.type", "\nserver.address"),
    _read,
    written_by="OpenTelemetry's official instrumentors, pydantic-ai, autogen, the MCP SDK, newer "
    "traceloop (0.62)",
    read_from="`gen_ai.*`, `mcp.method.name`",
    kinds="llm, tool, retrieval, embedding, agent",
    messages="JSON; off by default in the official ones",
    tokens="counts",
    missing="node, state",
)
