"""Records an MCP client's tool calls: arguments, result, and whether the tool reports an error.

The SDK's own spans contain none of these, and many servers are not instrumented or not in Python.
"""

import json
from collections.abc import Awaitable, Callable
from types import ModuleType
from typing import Any

import wrapt
from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind, StatusCode

from ltrain_instrument.attributes import SCOPE_INSTRUMENT
from ltrain_instrument.privacy import content

Call = Callable[..., Awaitable[Any]]


def patch_mcp() -> None:
    """Wrap the client's session once the agent imports it."""
    wrapt.when_imported("mcp.client.session")(_wrap)


def _wrap(module: ModuleType) -> None:
    if hasattr(module, "ClientSession"):
        wrapt.wrap_function_wrapper(module, "ClientSession.call_tool", _call_tool)


async def _call_tool(
    call: Call, session: object, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    name, arguments = (*args, None, None)[:2]
    name, arguments = kwargs.get("name", name), kwargs.get("arguments", arguments)
    span_attributes = {
        "gen_ai.operation.name": "execute_tool",
        "mcp.method.name": "tools/call",
        "gen_ai.tool.name": str(name),
    }
    if content.is_content_recorded():
        span_attributes["gen_ai.tool.call.arguments"] = _json(arguments or {})
    tracer = trace.get_tracer(SCOPE_INSTRUMENT)
    with tracer.start_as_current_span(
        f"tools/call {name}", kind=SpanKind.CLIENT, attributes=span_attributes
    ) as span:
        result = await call(*args, **kwargs)
        _record_result(span, result)
        return result


def _record_result(span: Span, result: Any) -> None:
    """Record the result; of unknown versions, the parts that are readable."""
    parts = getattr(result, "content", None)
    if isinstance(parts, list) and content.is_content_recorded():
        texts = [getattr(part, "text", None) for part in parts]
        text = _json(parts) if None in texts else "\n".join(map(str, texts))
        span.set_attribute("gen_ai.tool.call.result", text)
    # version 1.x uses the protocol's spelling
    if getattr(result, "is_error", getattr(result, "isError", False)) is True:
        span.set_attribute("error.type", "tool_error")
        span.set_status(StatusCode.ERROR)


def _json(value: Any) -> str:
    """Return JSON, with result parts as their models dump them; else the value's repr."""
    try:
        return json.dumps(value, default=_to_json_value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        return repr(value)


def _to_json_value(value: Any) -> Any:
    dump = getattr(value, "model_dump", None)
    return dump(mode="json", exclude_none=True) if callable(dump) else str(value)
