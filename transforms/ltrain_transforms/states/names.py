"""Names of semantic variables; a name depends on the call that writes it, on nothing else.

A graph's keys keep their own names. See docs/states.md for the list.
"""

from collections.abc import Sequence
from typing import Any

from ltrain_transforms.states.step import Step
from ltrain_transforms.states.values import structured

INPUT = "input"
"""What the user said last; of an execution that ltrain drives, the task."""
ANSWER = "answer"
"""The final answer; between agents that have no names, what was said last."""
CONTEXT = "context"
"""That a history was rewritten: turns that are gone, and that were kept."""


def agent(step: Step) -> str | None:
    """Give the agent; a graph's node that is no agent is called by its own name there."""
    return step.agent if step.agent != step.node else None


def of_agent(step: Step, what: str) -> str:
    """Name what an agent was given or gave."""
    return f"{step.agent or step.name}.{what}"


def of_call(step: Step, what: str) -> str:
    """Name what an LLM call of some agent, if it has one, did."""
    own = agent(step)
    return f"{own}.{what}" if own else what


def of_tool(name: str | None, what: str) -> str:
    return f"tool.{name or 'unknown'}.{what}"


def of_retrieval(name: str | None, what: str) -> str:
    return f"retrieval.{name or 'unknown'}.{what}"


def summary(variable: str) -> str:
    """Name an LLM call's text that turned out to stand for a history: no answer, a summary."""
    if variable == ANSWER:
        return "summary"
    return variable.removesuffix("output") + "summary" if variable.endswith(".output") else variable


def invocations(steps: Sequence[Step]) -> dict[str, str]:
    """Say in which run of which agent each call is, by call id; calls of no agent are left out.

    An outermost agent is one and the same in each of its turns; one that another calls begins anew.
    """
    agents = {step.call_id for step in steps if step.kind == "agent"}
    if not agents:
        return {}
    held = {step.call_id: step for step in steps if step.kind in ("agent", "node", "tool")}
    above: dict[str, str] = {}
    for step in steps:
        at, seen = step.parent_id, set[str]()
        while at is not None and at not in agents and at not in seen:
            seen.add(at)
            at = held[at].parent_id if at in held else None
        if at in agents:
            own = held[at]
            above[step.call_id] = own.call_id if own.parent_id else f"the {own.name}"
    return above


def taken_whole(steps: Sequence[Step]) -> dict[str, tuple[str, Any]]:
    """Give variable and value of what tools and retrievals took, by the text, where it is one."""
    taken: dict[str, tuple[str, Any]] = {}
    for step in steps:
        if step.kind == "retrieval":
            variable = of_retrieval(step.name, "query")
        elif step.kind == "tool" and not step.tool_call_id:
            variable = of_tool(step.name, "arguments")
        else:
            continue
        value = structured(step.input)
        inside = texts(value)
        if len(inside) == 1 and inside[0].strip():
            taken[inside[0].strip()] = variable, value
    return taken


def documents(value: Any) -> Any:
    """Take retrieved passages out of the object that some instrumentations put around them."""
    inner = value.get("documents") if isinstance(value, dict) and len(value) == 1 else None
    return inner if isinstance(inner, list) else value


def texts(value: Any) -> list[str]:
    """Give every text inside of a value."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict | list):
        items = value.values() if isinstance(value, dict) else value
        return [text for item in items for text in texts(item)]
    return []
