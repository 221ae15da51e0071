"""The runs of CrewAI's agents that others delegate to: its instrumentor sees a crew's tasks alone.

Without them, what a coworker asks and does would be the work of the agent that delegated.
"""

from collections.abc import Awaitable, Callable
from types import ModuleType
from typing import Any

import wrapt
from opentelemetry import trace
from opentelemetry.trace import Span

from ltrain_instrument.attributes import SCOPE_INSTRUMENT

Call = Callable[..., Any]


def install() -> None:
    """Wrap the agents once they are imported."""
    wrapt.when_imported("crewai.agent.core")(_wrap)


def _wrap(module: ModuleType) -> None:
    agent = getattr(module, "Agent", None)
    for name, wrapper in (("execute_task", _execute), ("aexecute_task", _aexecute)):
        if hasattr(agent, name):
            wrapt.wrap_function_wrapper(module, f"Agent.{name}", wrapper)


def _execute(call: Call, agent: object, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
    if not _delegated(trace.get_current_span()):
        return call(*given, **named)
    with _run(agent):
        return call(*given, **named)


async def _aexecute(
    call: Callable[..., Awaitable[Any]],
    agent: object,
    given: tuple[Any, ...],
    named: dict[str, Any],
) -> Any:
    if not _delegated(trace.get_current_span()):
        return await call(*given, **named)
    with _run(agent):
        return await call(*given, **named)


def _delegated(span: Span) -> bool:
    """Say whether a tool runs the agent; in a task of its own it has a span already."""
    return (getattr(span, "attributes", None) or {}).get("openinference.span.kind") == "TOOL"


def _run(agent: object) -> Any:
    role = str(getattr(agent, "role", "") or type(agent).__name__)
    said = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": role}
    tracer = trace.get_tracer(SCOPE_INSTRUMENT)
    return tracer.start_as_current_span(f"invoke_agent {role}", attributes=said)
