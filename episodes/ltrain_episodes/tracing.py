"""The spans of an episode, in OpenTelemetry's gen_ai conventions."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from opentelemetry import trace
from opentelemetry.trace import Span

from ltrain_instrument import reward

SCOPE = "ltrain.episodes"
STEP_REWARD = "step"
"""The name of the evaluation of a step."""


@contextmanager
def agent_span(name: str) -> Iterator[None]:
    """Trace one turn of an agent."""
    values = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": name}
    with _tracer().start_as_current_span(f"invoke_agent {name}", attributes=values):
        yield


@contextmanager
def step_span(env: Any, action: Any) -> Iterator[Span]:
    """Trace one step of an environment as a tool call; an exception is its error."""
    name = _name(env)
    values = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": name,
        "gen_ai.tool.call.arguments": _text({"action": action}),
    }
    with _tracer().start_as_current_span(f"execute_tool {name}", attributes=values) as span:
        try:
            yield span
        except Exception as error:
            span.set_attribute("error.type", type(error).__name__)
            raise


def record_step(span: Span, observation: Any, value: float) -> None:
    """Record what a step returned: the observation, and the reward as an evaluation of the step."""
    span.set_attribute("gen_ai.tool.call.result", _text(observation))
    reward(value, STEP_REWARD, scope="call")


def _name(env: Any) -> str:
    """Return the id of an environment of Gymnasium, else the name of its class."""
    return getattr(getattr(env, "spec", None), "id", None) or type(env).__name__


def _tracer() -> trace.Tracer:
    return trace.get_tracer(SCOPE)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)
