"""Records haystack's agents and the tools that they call.

Its instrumentors record components of a pipeline only: an agent that runs by itself has no span, so
each of its model's calls is a trace of its own, and no tool has one.
"""

import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import wrapt
from opentelemetry import trace
from opentelemetry.trace import Span, StatusCode

from ltrain_instrument.attributes import SCOPE_INSTRUMENT
from ltrain_instrument.privacy import content

Call = Callable[..., Any]
Json = dict[str, Any]
OUTPUT = "haystack.agent.step.tool.output"
FAILED = "haystack.tool.error"
"""Tags that haystack sets on the span of a tool: its result, and whether it failed."""


def patch_haystack() -> None:
    """Wrap agents and their tools once they are imported."""
    wrapt.when_imported("haystack.components.agents.agent")(_wrap_agents)
    wrapt.when_imported("haystack.components.agents.tool_calling")(_wrap_tools)


def _wrap_agents(module: ModuleType) -> None:
    agent = getattr(module, "Agent", None)
    for method, wrapper in (("run", _run), ("run_async", _arun)):
        if hasattr(agent, method):
            wrapt.wrap_function_wrapper(module, f"Agent.{method}", wrapper)


def _wrap_tools(module: ModuleType) -> None:
    if hasattr(module, "_create_tool_span"):
        wrapt.wrap_function_wrapper(module, "_create_tool_span", _create_tool_span)


def _run(call: Call, agent: object, args: tuple[Any, ...], kwargs: Json) -> Any:
    with _agent_span(agent):
        return call(*args, **kwargs)


async def _arun(
    call: Callable[..., Awaitable[Any]], agent: object, args: tuple[Any, ...], kwargs: Json
) -> Any:
    with _agent_span(agent):
        return await call(*args, **kwargs)


def _agent_span(agent: object) -> Any:
    """Return the span of a run; in a pipeline the agent has a name."""
    name = str(getattr(agent, "__component_name__", "") or type(agent).__name__)
    attributes = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": name}
    tracer = trace.get_tracer(SCOPE_INSTRUMENT)
    return tracer.start_as_current_span(f"invoke_agent {name}", attributes=attributes)


def _create_tool_span(call: Call, instance: object, args: tuple[Any, ...], kwargs: Json) -> Any:
    tool_call = kwargs.get("tool_call", args[1] if len(args) > 1 else None)
    return _tool_span(call(*args, **kwargs), tool_call)


@contextmanager
def _tool_span(haystack_span: Any, tool_call: Any) -> Iterator[Any]:
    """Open a span of the tool around haystack's own one."""
    name = str(getattr(tool_call, "tool_name", "tool"))
    attributes = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": name}
    if tool_call_id := getattr(tool_call, "id", None):
        attributes["gen_ai.tool.call.id"] = str(tool_call_id)
    if content.is_content_recorded():
        attributes["gen_ai.tool.call.arguments"] = _json(getattr(tool_call, "arguments", None))
    tracer = trace.get_tracer(SCOPE_INSTRUMENT)
    with (
        tracer.start_as_current_span(f"execute_tool {name}", attributes=attributes) as span,
        haystack_span as inner,
    ):
        yield _ToolSpan(inner, span)


class _ToolSpan(wrapt.ObjectProxy):  # type: ignore[misc,name-defined,type-arg,unused-ignore]
    """haystack's span of a tool, which writes the result on OpenTelemetry's span too."""

    def __init__(self, inner: Any, span: Span) -> None:
        super().__init__(inner)
        self._self_span = span

    def set_tag(self, key: str, value: Any) -> None:
        if key == FAILED and value:
            self._self_span.set_attribute("error.type", "tool_error")
            self._self_span.set_status(StatusCode.ERROR)
        self.__wrapped__.set_tag(key, value)

    def set_content_tag(self, key: str, value: Any) -> None:
        if key == OUTPUT and content.is_content_recorded():
            text = value if isinstance(value, str) else _json(value)
            self._self_span.set_attribute("gen_ai.tool.call.result", text)
        self.__wrapped__.set_content_tag(key, value)


def _json(value: Any) -> str:
    """Return JSON; else the name of the value's type."""
    try:
        return json.dumps(value, default=str, ensure_ascii=False)
    except Exception:  # a user's __str__ may raise anything, and the tool has succeeded
        return type(value).__name__
