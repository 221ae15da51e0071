"""ATIF, Harbor's Agent Trajectory Interchange Format (RFC 0001, version 1.7).

A line is the trajectory of one conversation. Tool results are the observation of the step whose
calls they answer. An answer that the policy did not sample is `is_copied_context`, which ATIF keeps
out of training. Token ids and log-probabilities are in the metrics of a step if they were recorded.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import count
from typing import Any

from ltrain_transforms.exports.conversation_rows import (
    Facts,
    Fields,
    Rows,
    export_conversations,
)
from ltrain_transforms.exports.conversations import Conversation
from ltrain_transforms.exports.conversion import ExportResult, Line
from ltrain_transforms.exports.conversion_files import ExportJob
from ltrain_transforms.rendering import ChatMessage, to_chat
from ltrain_transforms.traces import parse_json

VERSION = "ATIF-v1.7"

COLUMNS = (
    *("agent", "model", "start", "choice"),
    *("input_tokens", "output_tokens", "cached_tokens"),
    *("prompt_token_ids", "response_token_ids", "response_logprobs"),
)
"""The columns of `calls` that a trajectory has beside messages."""

TOKENS = {
    "prompt_tokens": "input_tokens",
    "completion_tokens": "output_tokens",
    "cached_tokens": "cached_tokens",
}
"""Metrics of a step, and their columns."""

SOURCES = {"system": "system", "developer": "system", "user": "user", "assistant": "agent"}

UNKNOWN = "unknown"
"""The name or the version of an agent that no span has; ATIF requires both."""


def export_atif(job: ExportJob) -> ExportResult:
    """Export the conversations of the best rollouts as trajectories."""
    return export_conversations(job, _rows, COLUMNS).result()


def _rows(conversation: Conversation, facts: Facts) -> Rows:
    ids = list(conversation.answers.values())
    yield _trajectory(conversation, facts.execution, [facts.calls[call] for call in ids]), ids


def _trajectory(conversation: Conversation, execution: Fields, calls: list[Fields]) -> Line:
    first = calls[0]
    agent = {"name": first["agent"] or UNKNOWN, "version": UNKNOWN, "model_name": first["model"]}
    steps = list(_steps(conversation, calls))
    extra = {
        "reward": execution["outcome_reward"],
        **{name: execution[name] for name in ("task_id", "run_id", "domain", "mode")},
    }
    return {
        "schema_version": VERSION,
        "session_id": execution["execution_id"],
        "trajectory_id": first["call_id"],
        "agent": _known({**agent, "tool_definitions": conversation.tools or None}),
        "steps": steps,
        "final_metrics": {"total_steps": len(steps), **_totals(calls)},
        "extra": _known(extra),
    }


def _steps(conversation: Conversation, calls: list[Fields]) -> Iterator[Line]:
    by_id = {call["call_id"]: call for call in calls}
    numbers, step = count(1), dict[str, Any]()
    for index, message in enumerate(conversation.messages):
        call = by_id.get(conversation.answers.get(index, ""))
        for converted in to_chat([message]):
            if converted["role"] == "tool" and step.get("source") == "agent":
                _observe(step, converted)
                continue
            if step:
                yield step
            step = {"step_id": next(numbers), **_step(converted, call)}
    yield step


def _step(message: ChatMessage, call: Fields | None) -> Line:
    step: Line = {"source": SOURCES.get(message["role"], "user"), "message": message["content"]}
    if step["source"] != "agent":
        return step
    if thinking := message.get("reasoning_content"):
        step["reasoning_content"] = thinking
    if requests := message.get("tool_calls"):
        step["tool_calls"] = list(map(_tool_call, requests))
    return step | ({"is_copied_context": True} if call is None else _sampled(call))


def _sampled(call: Fields) -> Line:
    moment = datetime.fromtimestamp(call["start"] / 1e9, UTC)
    metrics = {name: call[column] for name, column in TOKENS.items()} | _tokens(call)
    known = {"model_name": call["model"], "metrics": _known(metrics) or None}
    return {"timestamp": moment.isoformat(), "llm_call_count": 1, **_known(known)}


def _tokens(call: Fields) -> Line:
    """Return the token ids and log-probabilities of the answer that the agent continued."""
    choice = call["choice"] or 0
    ids, logprobs = call["response_token_ids"], call["response_logprobs"]
    return {
        "prompt_token_ids": call["prompt_token_ids"],
        "completion_token_ids": ids[choice] if ids else None,
        "logprobs": logprobs[choice] if logprobs else None,
    }


def _tool_call(request: ChatMessage) -> Line:
    function = request["function"]
    arguments = parse_json(function["arguments"])
    known = arguments if isinstance(arguments, dict) else {"arguments": function["arguments"]}
    return {
        "tool_call_id": request["id"] or "",
        "function_name": function["name"],
        "arguments": known,
    }


def _observe(step: Line, message: ChatMessage) -> None:
    """Add a tool's result to the step before it, by the id of its call if that step has it."""
    known = {call["tool_call_id"] for call in step.get("tool_calls", ())}
    source = message["tool_call_id"] if message["tool_call_id"] in known else None
    result = _known({"source_call_id": source, "content": message["content"]})
    step.setdefault("observation", {"results": []})["results"].append(result)


def _totals(calls: list[Fields]) -> Line:
    totals = {}
    for name, column in TOKENS.items():
        numbers = [call[column] for call in calls if call[column] is not None]
        totals[f"total_{name}"] = sum(numbers) if numbers else None
    return _known(totals)


def _known(fields: Line) -> Line:
    return {name: value for name, value in fields.items() if value is not None}
