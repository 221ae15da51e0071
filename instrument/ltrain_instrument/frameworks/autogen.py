"""Corrects OpenInference's spans of AutoGen's tools: marks failed ones, and hides arguments."""

from collections.abc import Awaitable, Callable
from types import ModuleType
from typing import Any

import wrapt
from opentelemetry import trace

from ltrain_instrument.privacy import OPENINFERENCE_KIND, content


def patch_autogen() -> None:
    """Wrap AutoGen's tool calls when the agent imports it; call this before instrumentors load."""
    wrapt.when_imported("autogen_agentchat.agents._assistant_agent")(_mark_failed_tools)


def _mark_failed_tools(module: ModuleType) -> None:
    """Set the error type of failed tools; OpenInference sets status OK first, which is final."""
    if hasattr(getattr(module, "AssistantAgent", None), "_execute_tool_call"):
        wrapt.wrap_function_wrapper(module, "AssistantAgent._execute_tool_call", _execute_tool_call)


async def _execute_tool_call(
    call: Callable[..., Awaitable[Any]],
    agent: object,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    span = trace.get_current_span()
    is_tool_span = (getattr(span, "attributes", None) or {}).get(OPENINFERENCE_KIND) == "TOOL"
    if is_tool_span and not content.is_content_recorded():
        span.set_attribute("tool.parameters", "")  # the instrumentor does not hide the arguments
    result = await call(*args, **kwargs)
    failed = isinstance(result, tuple) and getattr(result[-1], "is_error", False)
    if is_tool_span and failed:
        span.set_attribute("error.type", "tool_error")
    return result
