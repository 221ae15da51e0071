"""Calls of Weave in JSONL, as its API and the export of its page have them.

A call of a model is one of the kind `llm`, or one that has messages and choices; its attributes are
OpenTelemetry's. Reactions and scores in the summary are evaluations: of the root call those of the
trace.
"""

from collections.abc import Iterator
from typing import Any, ClassVar

from ltrain_collector.sources import spans
from ltrain_collector.sources.spans import (
    RecordReader,
    Request,
    Score,
    SpanRecord,
    as_text,
    hex_id,
    nanoseconds,
)

SERVICE = "weave"
OPERATIONS = {"llm": "chat", "tool": "execute_tool", "agent": "invoke_agent"}
REACTIONS = {"👍": 1.0, "👎": 0.0}


class WeaveCalls(RecordReader):
    """Reads one file."""

    written_by: ClassVar[str] = "Weave: calls in JSONL"

    @classmethod
    def reads(cls, record: dict[str, Any]) -> bool:
        return {"op_name", "trace_id", "started_at", "inputs"} <= record.keys()

    def add(self, record: dict[str, Any]) -> Iterator[Request]:
        start = nanoseconds(record["started_at"])
        end = nanoseconds(record["ended_at"]) if record.get("ended_at") else start
        parent, trace = record.get("parent_id"), hex_id(record["trace_id"], 32)
        name = record.get("display_name") or _operation(record["op_name"])
        span = SpanRecord(
            trace_id=trace,
            span_id=hex_id(record["id"], 16),
            parent_id=hex_id(parent, 16) if parent else "",
            name=name,
            times=(start, end),
            attributes=_attributes(record, name),
            error=as_text(record.get("exception")),
        )
        yield spans.request(SERVICE, span)
        for feedback in _summary(record).get("feedback") or ():
            value = _value(feedback)
            score = Score(
                trace_id=trace,
                judged=hex_id(record["id"], 16) if parent else "",
                name=feedback["feedback_type"].removeprefix("wandb.runnable."),
                value=value,
                time=nanoseconds(feedback.get("created_at") or record["started_at"]),
                label=as_text((feedback.get("payload") or {}).get("emoji")),
                author="human" if feedback["feedback_type"].startswith("wandb.reaction") else "",
                id=feedback.get("id") or "",
            )
            yield spans.evaluation(SERVICE, score)


def _operation(name: str) -> str:
    """Return the name in a reference `weave:///team/project/op/NAME:DIGEST`."""
    return name.rpartition("/op/")[2].partition(":")[0] or name


def _summary(record: dict[str, Any]) -> dict[str, Any]:
    return dict((record.get("summary") or {}).get("weave") or {})


def _attributes(record: dict[str, Any], name: str) -> dict[str, Any]:
    inputs, output = record["inputs"] or {}, record.get("output")
    own = record.get("attributes") or {}
    kind = (own.get("weave") or {}).get("kind") or own.get("kind") or ""
    if not kind and "messages" in inputs and isinstance(output, dict) and "choices" in output:
        kind = "llm"
    shared = {
        "weave.span.kind": kind or "chain",
        "gen_ai.operation.name": OPERATIONS.get(kind),
        "gen_ai.conversation.id": record.get("thread_id"),
    }
    if kind == "tool":
        return shared | {
            "gen_ai.tool.name": name,
            "gen_ai.tool.call.arguments": as_text(inputs),
            "gen_ai.tool.call.result": as_text(output),
        }
    if kind != "llm":
        return shared | {"gen_ai.agent.name": name if kind == "agent" else None}
    [(model, usage)] = list(((record.get("summary") or {}).get("usage") or {}).items())[:1] or [
        ("", {})
    ]
    return shared | {
        "gen_ai.request.model": inputs.get("model") or model,
        "gen_ai.input.messages": as_text(inputs.get("messages")),
        "gen_ai.output.messages": as_text(output),
        "gen_ai.usage.input_tokens": usage.get("prompt_tokens") or usage.get("input_tokens"),
        "gen_ai.usage.output_tokens": usage.get("completion_tokens") or usage.get("output_tokens"),
    }


def _value(feedback: dict[str, Any]) -> float | None:
    payload = feedback.get("payload") or {}
    value = payload.get("output", payload.get("value"))
    if isinstance(value, int | float):
        return float(value)
    return REACTIONS.get(payload.get("emoji") or "")
