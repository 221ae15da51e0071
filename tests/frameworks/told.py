"""The calls of a run as lines, which a test compares with literal ones.

    traveller ok tool_calls 7+5: weather(city=Paris) + weather(city=Rome)
      traveller ok weather(city=Paris): It is sunny in Paris.

An LLM call with its agent, status, finish reason, tokens and what it said; under it the tools that
it asked for, by tool-call id, each with its agent, status, arguments and result.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.frameworks.conftest import Ran

Json = dict[str, Any]


def told(ran: Ran) -> list[str]:
    """Give the LLM calls in their order, each followed by its tools; last tools of nobody's."""
    lines, tools = [], sorted(ran.of("tool"), key=lambda tool: tool["tool_call_id"] or "")
    for call in [*ran.of("llm"), {"call_id": None}]:
        if call["call_id"]:
            lines.append(_llm(call))
        lines += [_tool(tool) for tool in tools if tool["requested_by"] == call["call_id"]]
    return lines


def _llm(call: Json) -> str:
    counts = f"{call['input_tokens']}+{call['output_tokens']}"
    if not call["delivered"]:
        counts += " left"
    return f"{call['agent']} {call['status']} {call['finish_reason']} {counts}: {_said(call)}"


def _said(call: Json) -> str:
    said = []
    for message in json.loads(call["output"] or "[]"):
        for part in message["parts"]:
            if part["type"] == "tool_call":
                said.append(_asked(part["name"], part["arguments"]))
            elif part["content"]:
                said.append(
                    f"<{part['content']}>" if part["type"] == "reasoning" else part["content"]
                )
    return " + ".join(said)


def _tool(tool: Json) -> str:
    said = tool["error_type"] if tool["result"] is None else tool["result"]
    return f"  {tool['agent']} {tool['status']} {_asked(tool['name'], tool['arguments'])}: {said}"


def _asked(name: str, arguments: Any) -> str:
    given = json.loads(arguments) if isinstance(arguments, str) and arguments else arguments or {}
    return f"{name}({', '.join(f'{key}={value}' for key, value in given.items())})"
