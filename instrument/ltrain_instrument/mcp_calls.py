"""An MCP client's tool calls: what was asked, what came back, and whether it says that it failed.

The SDK's own spans hold none of it, and many servers are not instrumented, or not in Python.
"""

import json
from collections.abc import Awaitable, Callable
from types import ModuleType
from typing import Any

import wrapt
from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind, StatusCode

from ltrain_instrument import content
from ltrain_instrument.attributes import SCOPE_INSTRUMENT

Call = Callable[..., Awaitable[Any]]


def install() -> None:
    """Wrap the client's session once the agent imports it."""
    wrapt.when_imported("mcp.client.session")(_wrap)


def _wrap(module: ModuleType) -> None:
    if hasattr(module, "ClientSession"):
        wrapt.wrap_function_wrapper(module, "ClientSession.call_tool", _call_tool)


async def _call_tool(
    call: Call, session: object, given: tuple[Any, ...], named: dict[str, Any]
) -> Any:
    name, arguments = (*given, None, None)[:2]
    name, arguments = named.get("name", name), named.get("arguments", arguments)
    said = {
        "gen_ai.operation.name": "execute_tool",
        "mcp.method.name": "tools/call",
        "gen_ai.tool.name": str(name),
    }
    if content.recorded():
        said["gen_ai.tool.call.arguments"] = _json(arguments or {})
    tracer = trace.get_tracer(SCOPE_INSTRUMENT)
    with tracer.start_as_current_span(
        f"tools/call {name}", kind=SpanKind.CLIENT, attributes=said
    ) as span:
        result = await call(*given, **named)
        _came_back(span, result)
        return result


def _came_back(span: Span, result: Any) -> None:
    """Record a result; of another version's, what can be read."""
    parts = getattr(result, "content", None)
    if isinstance(parts, list) and content.recorded():
        texts = [getattr(part, "text", None) for part in parts]
        text = _json(parts) if None in texts else "\n".join(map(str, texts))
        span.set_attribute("gen_ai.tool.call.result", text)
    # 1.x spells it as the protocol does
    if getattr(result, "is_error", getattr(result, "isError", False)) is True:
        span.set_attribute("error.type", "tool_error")
        span.set_status(StatusCode.ERROR)


def _json(value: Any) -> str:
    """Write JSON, parts of a result as their models say; what has no JSON as Python prints it."""
    try:
        return json.dumps(value, default=_plain, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        return repr(value)


def _plain(value: Any) -> Any:
    dump = getattr(value, "model_dump", None)
    return dump(mode="json", exclude_none=True) if callable(dump) else str(value)
