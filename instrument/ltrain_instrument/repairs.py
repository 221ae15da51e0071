"""Repairs of other instrumentations, made when the agent imports what they are for.

Each is of one fault that would cost the agent a warning a call, or its reader a failure.
"""

from collections.abc import Awaitable, Callable
from types import ModuleType
from typing import Any

import wrapt
from opentelemetry import trace

from ltrain_instrument import content

KIND = "openinference.span.kind"


def install() -> None:
    """Wait for the modules; to be called before an instrumentor loads."""
    traceloop = "opentelemetry.instrumentation.openai.shared"
    wrapt.when_imported(traceloop)(_leave_out_omitted)
    wrapt.when_imported(f"{traceloop}.chat_wrappers")(_count_thoughts_of_streams)
    wrapt.when_imported("autogen_agentchat.agents._assistant_agent")(_mark_failed_tools)


def _leave_out_omitted(module: ModuleType) -> None:
    """Keep traceloop from recording openai's `omit`, of which OpenTelemetry warns each time."""
    omit = getattr(getattr(module, "openai", None), "Omit", None)

    def unless_omitted(
        call: Callable[..., Any], _: object, given: tuple[Any, ...], named: dict[str, Any]
    ) -> None:
        value = named.get("value", given[-1] if given else None)
        if omit is None or not isinstance(value, omit):
            call(*given, **named)

    if hasattr(module, "_set_span_attribute"):
        wrapt.wrap_function_wrapper(module, "_set_span_attribute", unless_omitted)


def _count_thoughts_of_streams(module: ModuleType) -> None:
    """Record how many tokens of a stream were thought: traceloop does for whole answers only."""

    def count(
        call: Callable[..., Any], _: object, given: tuple[Any, ...], named: dict[str, Any]
    ) -> None:
        call(*given, **named)
        _, answer, span = (*given, None, None, None)[:3]
        usage = answer.get("usage") if isinstance(answer, dict) else None
        details = (
            usage.get("completion_tokens_details") if isinstance(usage, dict) else None
        ) or {}
        thought = details.get("reasoning_tokens") if isinstance(details, dict) else None
        if span is not None and isinstance(thought, int):
            span.set_attribute("gen_ai.usage.reasoning_tokens", thought)

    if hasattr(module, "_set_streaming_token_metrics"):
        wrapt.wrap_function_wrapper(module, "_set_streaming_token_metrics", count)


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
        span.set_attribute(
            "tool.parameters", ""
        )  # the arguments, which OpenInference does not hide
    answer = await call(*given, **named)
    failed = isinstance(answer, tuple) and getattr(answer[-1], "is_error", False)
    if of_tool and failed:
        span.set_attribute("error.type", "tool_error")
    return answer
