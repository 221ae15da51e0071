"""OpenTelemetry's gen_ai conventions, and MCP's, as the official instrumentors write them."""

from typing import Any

from ltrain_transforms.dialects.partial import Kind, Message, Partial, said
from ltrain_transforms.dialects.tool_results import unwrap
from ltrain_transforms.spans import Span

KINDS: dict[str, Kind] = {
    "chat": "llm",
    "text_completion": "llm",
    "generate_content": "llm",
    "execute_tool": "tool",
    "retrieval": "retrieval",
    "embeddings": "embedding",
    "invoke_agent": "agent",
    "invoke_workflow": "agent",
}


def read(span: Span) -> Partial:
    """Say what the `gen_ai.*` attributes say."""
    kind = _kind(span)
    partial = said(
        kind=kind,
        agent=span.get("gen_ai.agent.name"),
        version=span.get("gen_ai.agent.version"),
        model=span.get("gen_ai.response.model", "gen_ai.request.model"),
        endpoint=_endpoint(span),
        error_type=span.get("error.type"),
    )
    if kind == "llm":
        return {**partial, **_llm(span)}
    if kind == "tool":
        return {**partial, **_tool(span)}
    if kind == "retrieval":
        partial |= said(input=span.get("gen_ai.retrieval.query.text"))
        partial |= said(output=span.get("gen_ai.retrieval.documents"))
    return partial


def _kind(span: Span) -> Kind | None:
    if span.get("mcp.method.name") == "tools/call":
        return "tool"
    return KINDS.get(span.get("gen_ai.operation.name") or "")


def _llm(span: Span) -> Partial:
    output = messages(span.json("gen_ai.output.messages"))
    return said(
        input_messages=_instructions(span) + messages(span.json("gen_ai.input.messages")),
        output_messages=output,
        params=parameters(span),
        tools=span.get("gen_ai.tool.definitions"),
        finish_reason=_finish(span, output),
        input_tokens=span.whole("gen_ai.usage.input_tokens"),
        output_tokens=span.whole("gen_ai.usage.output_tokens"),
        response_id=span.get("gen_ai.response.id"),
    )


def _tool(span: Span) -> Partial:
    result = unwrap(span.get("gen_ai.tool.call.result"))
    return {
        **said(
            name=span.get("gen_ai.tool.name"),
            arguments=span.get("gen_ai.tool.call.arguments"),
            tool_call_id=span.get("gen_ai.tool.call.id"),
        ),
        **result,
    }


def messages(given: Any) -> list[Message]:
    """Keep what has the shape of a list of messages."""
    return [message for message in given if isinstance(message, dict)] if _is_list(given) else []


def _is_list(given: Any) -> bool:
    return isinstance(given, list)


def _instructions(span: Span) -> list[Message]:
    parts = span.json("gen_ai.system_instructions")
    return [{"role": "system", "parts": parts}] if isinstance(parts, list) and parts else []


def parameters(span: Span) -> dict[str, Any]:
    """Give the sampling parameters of the request by their short names."""
    prefix = "gen_ai.request."
    found = {name: span.json(name) for name in span.attributes if name.startswith(prefix)}
    short = {name.removeprefix(prefix): value for name, value in found.items()}
    return {name: value for name, value in short.items() if name != "model" and value is not None}


def _finish(span: Span, output: list[Message]) -> str | None:
    reasons = span.json("gen_ai.response.finish_reasons")
    if isinstance(reasons, list) and reasons:
        return _spelled(str(reasons[0]))
    return next((_spelled(str(m["finish_reason"])) for m in output if m.get("finish_reason")), None)


def _spelled(reason: str) -> str:
    # traceloop writes tool_call where OpenAI and everyone else write tool_calls
    return "tool_calls" if reason == "tool_call" else reason


def _endpoint(span: Span) -> str | None:
    address, port = span.get("server.address"), span.get("server.port")
    if address:
        return f"{address}:{port}" if port else address
    return span.get("gen_ai.openai.api_base")
