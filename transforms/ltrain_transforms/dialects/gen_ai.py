"""OpenTelemetry's gen_ai conventions, and MCP's, as the official instrumentors write them."""

from functools import lru_cache

from ltrain_transforms.dialects.messages import Message, Messages
from ltrain_transforms.dialects.partial import Kind, Parameters, Partial, non_empty
from ltrain_transforms.dialects.tool_arguments import unwrap_arguments
from ltrain_transforms.dialects.tool_results import parse_tool_result
from ltrain_transforms.spans import Span
from ltrain_transforms.untrusted import parse_json

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

MARKS = ("\ngen_ai.", "\nmcp.method.", "\nerror.type", "\nserver.address")


def read(span: Span) -> Partial:
    """Say what the `gen_ai.*` attributes say."""
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
    if kind == "retrieval":
        partial |= non_empty(input=span.get("gen_ai.retrieval.query.text"))
        partial |= non_empty(output=span.get("gen_ai.retrieval.documents"))
    return partial


def _kind(span: Span) -> Kind | None:
    if span.get("mcp.method.name") == "tools/call":
        return "tool"
    return KINDS.get(span.get("gen_ai.operation.name") or "")


def llm_fields(span: Span) -> Partial:
    """Say what the attributes of a request and its response say; any dialect may give the kind."""
    output = attribute_messages(span, "gen_ai.output.messages")
    return non_empty(
        input_messages=attribute_messages(span, "gen_ai.input.messages", _instructions(span)),
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
    """Say the same where `read` does not, because only another dialect knows that it is a call."""
    return {} if _kind(span) == "llm" else llm_fields(span)


def _tool(span: Span) -> Partial:
    result = parse_tool_result(span.get("gen_ai.tool.call.result"))
    return {
        **non_empty(
            name=span.get("gen_ai.tool.name"),
            arguments=_arguments(span),
            tool_call_id=span.get("gen_ai.tool.call.id"),
        ),
        **result,
    }


def _arguments(span: Span) -> str | None:
    """Give a tool's arguments; OpenInference's Agents SDK instrumentor copies its schema there."""
    given = span.get("gen_ai.tool.call.arguments")
    return None if given == span.get("tool.parameters") else unwrap_arguments(given)


def attribute_messages(
    span: Span, name: str, system: list[Message] | None = None
) -> Messages | None:
    """Give the messages of an attribute that holds them as JSON; None where it is absent."""
    written = span.get(name)
    if written is None:
        return Messages.of(name, system or [])
    return Messages(name, written, system or [])


def _instructions(span: Span) -> list[Message]:
    parts = span.json("gen_ai.system_instructions")
    return [{"role": "system", "parts": parts}] if isinstance(parts, list) and parts else []


REQUEST = "gen_ai.request."
# Of the conventions, of traceloop, of pydantic-ai
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
    """Give the sampling parameters of the request by their short names."""
    given = [pair for pair in span.attributes.items() if pair[0].startswith(REQUEST)]
    return _parameters(tuple(given))


@lru_cache(maxsize=1024)  # one process asks with the same parameters again and again
def _parameters(given: tuple[tuple[str, str], ...]) -> Parameters | None:
    values = {name.removeprefix(REQUEST): parse_json(text) for name, text in given}
    return Parameters.of({name: value for name, value in values.items() if name != "model"})


def _finish(span: Span, output: Messages | None) -> str | None:
    reasons = span.get("gen_ai.response.finish_reasons")
    if reasons is not None:
        spelled = finish_reason(reasons)
        if spelled is not None:
            return spelled
    if output is None:
        return None
    return next(
        (_spelled(str(m["finish_reason"])) for m in output.parsed if m.get("finish_reason")), None
    )


@lru_cache(maxsize=256)
def finish_reason(reasons: str) -> str | None:
    """Give the first of a JSON list of reasons."""
    given = parse_json(reasons)
    return _spelled(str(given[0])) if isinstance(given, list) and given else None


def _spelled(reason: str) -> str:
    # traceloop writes tool_call where OpenAI and everyone else write tool_calls
    return "tool_calls" if reason == "tool_call" else reason


def _endpoint(span: Span) -> str | None:
    address, port = span.get("server.address"), span.get("server.port")
    if address:
        return f"{address}:{port}" if port else address
    return span.get("gen_ai.openai.api_base")
