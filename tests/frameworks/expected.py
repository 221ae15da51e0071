"""Describes the calls of a run in lines, which a test compares with literal ones.

    traveller ok tool_calls 7+5: weather(city=Paris) + weather(city=Rome)
      traveller ok weather(city=Paris): It is sunny in Paris.

A line of an LLM call has its agent, status, finish reason, tokens and output. The tools that it
called follow, by tool-call id, each with agent, status, arguments and result.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import polars as pl
from tests.frameworks.turns import turns_of_request

from ltrain_transforms.recipe import failed_results

if TYPE_CHECKING:
    from tests.frameworks.conftest import RunResult

Json = dict[str, Any]


def describe_calls(result: RunResult) -> list[str]:
    """Return the LLM calls in their order, each with its tools; then tools without a caller."""
    lines = []
    tools = sorted(result.calls_of_kind("tool"), key=lambda tool: tool["tool_call_id"] or "")
    for call in [*result.calls_of_kind("llm"), {"call_id": None}]:
        if call["call_id"]:
            lines.append(_llm(call))
        lines += [_tool(tool) for tool in tools if tool["requested_by"] == call["call_id"]]
    return lines


def failed_texts(result: RunResult, framework: str) -> set[str]:
    """Return the tool results sent to the model that the framework's ready pattern matches."""
    texts = {
        turn[1]
        for request in result.model_requests
        if request.step is not None
        for turn in turns_of_request(request.body)
        if turn[0] == "result"
    }
    return {
        text for text in texts if pl.Series([text]).str.contains(failed_results()[framework])[0]
    }


def _llm(call: Json) -> str:
    counts = f"{call['input_tokens']}+{call['output_tokens']}"
    if not call["delivered"]:
        counts += " left"
    output = _describe_output(call)
    return f"{call['agent']} {call['status']} {call['finish_reason']} {counts}: {output}"


def _describe_output(call: Json) -> str:
    parts = []
    for message in json.loads(call["output"] or "[]"):
        for part in message["parts"]:
            if part["type"] == "tool_call":
                parts.append(_describe_tool_call(part["name"], part["arguments"]))
            elif part["content"]:
                parts.append(
                    f"<{part['content']}>" if part["type"] == "reasoning" else part["content"]
                )
    return " + ".join(parts)


def _tool(tool: Json) -> str:
    outcome = tool["error_type"] if tool["result"] is None else tool["result"]
    call = _describe_tool_call(tool["name"], tool["arguments"])
    return f"  {tool['agent']} {tool['status']} {call}: {outcome}"


def _describe_tool_call(name: str, arguments: Any) -> str:
    values = json.loads(arguments) if isinstance(arguments, str) and arguments else arguments or {}
    return f"{name}({', '.join(f'{key}={value}' for key, value in values.items())})"
