"""The runs of CrewAI that its instrumentor does not see: a coworker's, and all that are awaited.

Without a coworker's run, what it asks and does would be the work of the agent that delegated;
without an awaited crew's, each of its calls would be a trace of its own, and nobody's.
"""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from types import ModuleType
from typing import Any

import wrapt
from opentelemetry import trace

from ltrain_instrument.attributes import SCOPE_INSTRUMENT

KIND = "openinference.span.kind"

Call = Callable[..., Any]
Json = dict[str, Any]


def install() -> None:
    """Wrap agents and crews once they are imported."""
    for module, wrappers in _WRAPPED.items():
        wrapt.when_imported(module)(partial(_wrap, wrappers))


def _wrap(wrappers: Mapping[str, Call], module: ModuleType) -> None:
    for path, wrapper in wrappers.items():
        name, _, method = path.partition(".")
        if hasattr(getattr(module, name, None), method):
            wrapt.wrap_function_wrapper(module, path, wrapper)


def _run(call: Call, agent: object, given: tuple[Any, ...], named: Json) -> Any:
    if _seen():
        return call(*given, **named)
    with _agent(agent):
        return call(*given, **named)


async def _arun(
    call: Callable[..., Awaitable[Any]], agent: object, given: tuple[Any, ...], named: Json
) -> Any:
    if _seen():
        return await call(*given, **named)
    with _agent(agent):
        return await call(*given, **named)


async def _acrew(
    call: Callable[..., Awaitable[Any]], crew: object, given: tuple[Any, ...], named: Json
) -> Any:
    name = getattr(crew, "name", None) or "Crew"
    with _span("Crew" if name == "crew" else str(name), {KIND: "CHAIN"}):
        return await call(*given, **named)


def _seen() -> bool:
    """Say whether the instrumentor has a span of this run: then it is the current one."""
    span = trace.get_current_span()
    return bool((getattr(span, "attributes", None) or {}).get(KIND) == "AGENT")


def _agent(agent: object) -> Any:
    role = str(getattr(agent, "role", "") or type(agent).__name__)
    said = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": role}
    return _span(f"invoke_agent {role}", said)


def _span(name: str, said: Mapping[str, str]) -> Any:
    return trace.get_tracer(SCOPE_INSTRUMENT).start_as_current_span(name, attributes=said)


_WRAPPED: dict[str, dict[str, Call]] = {
    "crewai.agent.core": {
        "Agent.execute_task": _run,
        "Agent.aexecute_task": _arun,
        "Agent.kickoff_async": _arun,
    },
    "crewai.crew": {"Crew.akickoff": _acrew},
}
