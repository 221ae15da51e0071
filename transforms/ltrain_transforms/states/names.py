"""Names of semantic variables. A name depends only on the call that writes the variable.

The keys of a graph's state keep their names. docs/states.md lists all names.
"""

from collections.abc import Sequence
from typing import Any

from ltrain_transforms.states.snapshots import CallRecord
from ltrain_transforms.states.values import parse_structured

INPUT = "input"
"""The user's last message; in a rollout the task."""
ANSWER = "answer"
"""The final answer; where agents have no names, the last text of an LLM call."""
CONTEXT = "context"
"""A rewritten history: how many turns were removed, and how many remain."""


def agent_name(call: CallRecord) -> str | None:
    """Return the agent; None where the column holds the name of a node that is not an agent."""
    return call.agent if call.agent != call.node else None


def agent_variable(call: CallRecord, field: str) -> str:
    """Return the name of an agent's `input` or `output`."""
    return f"{call.agent or call.name}.{field}"


def call_variable(call: CallRecord, field: str) -> str:
    """Return the name of a variable that an LLM call writes, after its agent if it has one."""
    agent = agent_name(call)
    return f"{agent}.{field}" if agent else field


def tool_variable(name: str | None, field: str) -> str:
    return f"tool.{name or 'unknown'}.{field}"


def retrieval_variable(name: str | None, field: str) -> str:
    return f"retrieval.{name or 'unknown'}.{field}"


def summary_variable(variable: str) -> str:
    """Return the new name of an answer that later replaced a history: it is a summary."""
    if variable == ANSWER:
        return "summary"
    return variable.removesuffix("output") + "summary" if variable.endswith(".output") else variable


def agent_invocations(calls: Sequence[CallRecord]) -> dict[str, str]:
    """Return the agent invocation around each call, by call id; other calls are left out.

    The outermost agent has one invocation for all of its turns; each call of a sub-agent is an
    invocation of its own.
    """
    agents = {call.call_id for call in calls if call.kind == "agent"}
    if not agents:
        return {}
    containers = {call.call_id: call for call in calls if call.kind in ("agent", "node", "tool")}
    invocations: dict[str, str] = {}
    for call in calls:
        parent, visited = call.parent_id, set[str]()
        while parent is not None and parent not in agents and parent not in visited:
            visited.add(parent)
            parent = containers[parent].parent_id if parent in containers else None
        if parent in agents:
            agent = containers[parent]
            invocations[call.call_id] = agent.call_id if agent.parent_id else f"the {agent.name}"
    return invocations


def inputs_by_text(calls: Sequence[CallRecord]) -> dict[str, tuple[str, Any]]:
    """Return variable and value of each input of a tool or retrieval that is one text, by it."""
    inputs: dict[str, tuple[str, Any]] = {}
    for call in calls:
        if call.kind == "retrieval":
            variable = retrieval_variable(call.name, "query")
        elif call.kind == "tool" and not call.tool_call_id:
            variable = tool_variable(call.name, "arguments")
        else:
            continue
        value = parse_structured(call.input)
        texts = all_texts(value)
        if len(texts) == 1 and texts[0].strip():
            inputs[texts[0].strip()] = variable, value
    return inputs


def unwrap_documents(value: Any) -> Any:
    """Return the passages inside the object that some instrumentations put around them."""
    inner = value.get("documents") if isinstance(value, dict) and len(value) == 1 else None
    return inner if isinstance(inner, list) else value


def all_texts(value: Any) -> list[str]:
    """Return every text inside a value."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict | list):
        items = value.values() if isinstance(value, dict) else value
        return [text for item in items for text in all_texts(item)]
    return []
