"""Mends what OpenInference writes of AutoGen's tools: which failed, and arguments nobody hides."""

from collections.abc import Awaitable, Callable
from types import ModuleType
from typing import Any

import wrapt
from opentelemetry import trace

from ltrain_instrument import content

KIND = "openinference.span.kind"


def install() -> None:
    """Wait for the agent's import of AutoGen; to be called before an instrumentor loads."""
    wrapt.when_imported("autogen_agentchat.agents._assistant_agent")(_mark_failed_tools)


def _mark_failed_tools(module: ModuleType) -> None:
    """Say of AutoGen's tools that they failed: OpenInference first says OK, which is final."""
    if hasattr(getattr(module, "AssistantAgent", None), "_execute_tool_call"):
        wrapt.wrap_function_wrapper(module, "AssistantAgent._execute_tool_call", _execute_tool_call)


async def _execute_tool_call(
    call: Callable[..., Awaitable[Any]],
    agent: object,
    given: tuple[Any, ...],
    named: dict[str, Any],
) -> Any:
    span = trace.get_current_span()
    of_tool = (getattr(span, "attributes", None) or {}).get(KIND) == "TOOL"
    if of_tool and not content.recorded():
        span.set_attribute("tool.parameters", "")  # its arguments, which nobody hides
    answer = await call(*given, **named)
    failed = isinstance(answer, tuple) and getattr(answer[-1], "is_error", False)
    if of_tool and failed:
        span.set_attribute("error.type", "tool_error")
    return answer
