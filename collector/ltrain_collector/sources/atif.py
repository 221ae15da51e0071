"""Trajectories of ATIF, Harbor's Agent Trajectory Interchange Format (RFC 0001), one a record.

A step of the agent is a model call that read the steps before it; its tool calls have the results
of its observation. A number `reward` in `extra` is an evaluation. Steps without a timestamp follow
the one before them by a millisecond.
"""

from collections.abc import Iterator
from hashlib import md5
from typing import Any, ClassVar

from ltrain_collector.sources.conversation import (
    Conversation,
    Message,
    ModelCall,
    Part,
    ToolCall,
    request_part,
    result_message,
    text_part,
)
from ltrain_collector.sources.spans import MILLISECOND, Request, as_text, nanoseconds


class AtifTrajectory:
    """Reads one file."""

    written_by: ClassVar[str] = "Harbor: trajectories in ATIF"

    def __init__(self, modified: int) -> None:
        self._modified = modified

    @classmethod
    def reads(cls, record: dict[str, Any]) -> bool:
        return str(record.get("schema_version", "")).startswith("ATIF-")

    def add(self, record: dict[str, Any]) -> Iterator[Request]:
        agent = record["agent"]
        session = record.get("session_id") or md5(as_text(record).encode()).hexdigest()
        talk = Conversation(agent["name"], session, agent.get("version") or "")
        time, history = self._modified, list[Message]()
        for step in record["steps"]:
            stamp = step.get("timestamp")
            time = nanoseconds(stamp) if stamp else time + MILLISECOND
            message: Message = {"role": _role(step), "parts": _parts(step)}
            if step["source"] == "agent" and not step.get("is_copied_context"):
                model = step.get("model_name") or agent.get("model_name") or "unknown"
                yield talk.call(_call(step, model, time, history, message["parts"]))
            history = [*history, message]
            results = _results(step)
            for number, request in enumerate(step.get("tool_calls") or ()):
                name = request["tool_call_id"]
                result = results.get(name) or results.get(number) or ""
                yield talk.tool(
                    ToolCall(
                        id=name or f"step {step['step_id']} call {number}",
                        times=(time, time),
                        name=request["function_name"],
                        arguments=as_text(request.get("arguments")),
                        result=result,
                    )
                )
                history = [*history, result_message(name, result)]
        reward = (record.get("extra") or {}).get("reward")
        if isinstance(reward, int | float):
            yield talk.evaluation("reward", float(reward))
        yield from talk.end()

    def end(self) -> Iterator[Request]:
        yield from ()


def _role(step: dict[str, Any]) -> str:
    return "assistant" if step["source"] == "agent" else str(step["source"])


def _parts(step: dict[str, Any]) -> list[Part]:
    thinking, message = step.get("reasoning_content"), step.get("message")
    parts = [{"type": "reasoning", "content": thinking}] if thinking else []
    if message:
        parts.append(text_part(as_text(message)))
    for request in step.get("tool_calls") or ():
        arguments = request.get("arguments")
        parts.append(request_part(request["tool_call_id"], request["function_name"], arguments))
    return parts


def _results(step: dict[str, Any]) -> dict[str | int, str]:
    """Return the results of the observation by the id of their call, else by their place."""
    results = (step.get("observation") or {}).get("results") or ()
    return {
        each.get("source_call_id") or number: as_text(each.get("content"))
        for number, each in enumerate(results)
    }


def _call(
    step: dict[str, Any], model: str, time: int, history: list[Message], parts: list[Part]
) -> ModelCall:
    metrics = step.get("metrics") or {}
    return ModelCall(
        name=f"step {step['step_id']}",
        times=(time, time),
        model=model,
        prompt=history,
        answer=parts,
        usage={
            "input": metrics.get("prompt_tokens"),
            "output": metrics.get("completion_tokens"),
            "cached": metrics.get("cached_tokens"),
        },
    )
