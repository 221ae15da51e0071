"""Exports of Opik: traces and spans in JSON or JSONL, one a record, or `{"trace", "spans"}`.

A span becomes one with the attributes of Opik's OpenTelemetry, so that its dialect reads it; a
trace is the node above its spans. Feedback scores are evaluations.
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

SERVICE = "opik"
OPERATIONS = {"llm": "chat", "tool": "execute_tool"}
AUTHORS = {"ui": "human", "sdk": "code", "online_scoring": "llm"}
"""The kinds of authors by the `source` of a score."""
KEYS = {"id", "start_time", "input"}


class OpikExport(RecordReader):
    """Reads one file."""

    written_by: ClassVar[str] = "Opik: exports of traces and spans"

    @classmethod
    def reads(cls, record: dict[str, Any]) -> bool:
        trace = record.get("trace") or record
        return isinstance(trace, dict) and trace.keys() >= KEYS and "run_type" not in trace

    def add(self, record: dict[str, Any]) -> Iterator[Request]:
        if "trace" in record:
            yield from self.add(record["trace"])
            for span in record.get("spans") or ():
                yield from self.add({"trace_id": record["trace"]["id"], **span})
            return
        is_span = "trace_id" in record
        trace = record["trace_id"] if is_span else record["id"]
        own = hex_id(record["id"], 16) if is_span else _root(trace)
        yield spans.request(SERVICE, _span(record, trace, own, is_span))
        for rating in record.get("feedback_scores") or ():
            score = Score(
                trace_id=hex_id(trace, 32),
                judged=own if is_span else "",
                name=rating["name"],
                value=float(rating["value"]),
                time=nanoseconds(rating.get("last_updated_at") or record["start_time"]),
                label=rating.get("category_name") or "",
                note=rating.get("reason") or "",
                author=AUTHORS.get(rating.get("source") or "", ""),
            )
            yield spans.evaluation(SERVICE, score)


def _root(trace: str) -> str:
    return hex_id(f"trace {trace}", 16)


def _span(record: dict[str, Any], trace: str, own: str, is_span: bool) -> SpanRecord:
    start = nanoseconds(record["start_time"])
    end = nanoseconds(record["end_time"]) if record.get("end_time") else start
    parent, kind = record.get("parent_span_id"), record.get("type") or "general"
    failure, usage = record.get("error_info") or {}, record.get("usage") or {}
    above = hex_id(parent, 16) if parent else _root(trace)
    return SpanRecord(
        trace_id=hex_id(trace, 32),
        span_id=own,
        parent_id=above if is_span else "",
        name=record.get("name") or kind,
        times=(start, end),
        attributes={
            "opik.type": kind,
            "input": as_text(record["input"]),
            "output": as_text(record.get("output")),
            "gen_ai.operation.name": OPERATIONS.get(kind),
            "gen_ai.request.model": record.get("model"),
            "gen_ai.usage.input_tokens": usage.get("prompt_tokens"),
            "gen_ai.usage.output_tokens": usage.get("completion_tokens"),
            "gen_ai.conversation.id": record.get("thread_id"),
            "error.type": failure.get("exception_type"),
        },
        error=as_text(failure.get("message") or failure.get("exception_type")),
    )
