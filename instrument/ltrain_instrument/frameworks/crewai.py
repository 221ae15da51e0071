"""Records CrewAI runs that its instrumentor misses: those of a coworker, and awaited ones.

Without its own span, a coworker's work would count as work of the agent that delegated. Without a
span, each call of an awaited crew would be a separate trace without an agent.
"""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from types import ModuleType
from typing import Any

import wrapt
from opentelemetry import trace

from ltrain_instrument.attributes import SCOPE_INSTRUMENT
from ltrain_instrument.privacy import OPENINFERENCE_KIND

Call = Callable[..., Any]
Json = dict[str, Any]


def patch_crewai() -> None:
    """Wrap agents and crews once they are imported."""
    for module, wrappers in _WRAPPERS.items():
        wrapt.when_imported(module)(partial(_wrap, wrappers))


def _wrap(wrappers: Mapping[str, Call], module: ModuleType) -> None:
    for path, wrapper in wrappers.items():
        name, _, method = path.partition(".")
        if hasattr(getattr(module, name, None), method):
            wrapt.wrap_function_wrapper(module, path, wrapper)


def _run_agent(call: Call, agent: object, args: tuple[Any, ...], kwargs: Json) -> Any:
    if _has_agent_span():
        return call(*args, **kwargs)
    with _agent_span(agent):
        return call(*args, **kwargs)


async def _arun_agent(
    call: Callable[..., Awaitable[Any]], agent: object, args: tuple[Any, ...], kwargs: Json
) -> Any:
    if _has_agent_span():
        return await call(*args, **kwargs)
    with _agent_span(agent):
        return await call(*args, **kwargs)


async def _arun_crew(
    call: Callable[..., Awaitable[Any]], crew: object, args: tuple[Any, ...], kwargs: Json
) -> Any:
    name = getattr(crew, "name", None) or "Crew"
    with _start_span("Crew" if name == "crew" else str(name), {OPENINFERENCE_KIND: "CHAIN"}):
        return await call(*args, **kwargs)


def _has_agent_span() -> bool:
    """Return whether the instrumentor has a span of this run: it is then the current span."""
    span = trace.get_current_span()
    return bool((getattr(span, "attributes", None) or {}).get(OPENINFERENCE_KIND) == "AGENT")


def _agent_span(agent: object) -> Any:
    role = str(getattr(agent, "role", "") or type(agent).__name__)
    span_attributes = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": role}
    return _start_span(f"invoke_agent {role}", span_attributes)


def _start_span(name: str, span_attributes: Mapping[str, str]) -> Any:
    return trace.get_tracer(SCOPE_INSTRUMENT).start_as_current_span(
        name, attributes=span_attributes
    )


_WRAPPERS: dict[str, dict[str, Call]] = {
    "crewai.agent.core": {
        "Agent.execute_task": _run_agent,
        "Agent.aexecute_task": _arun_agent,
        "Agent.kickoff_async": _arun_agent,
    },
    "crewai.crew": {"Crew.akickoff": _arun_crew},
}
