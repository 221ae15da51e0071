"""Runs of LangSmith in JSONL: one run a line, as its API and `client.list_runs()` have it.

A run becomes a span with the attributes of LangSmith's own OpenTelemetry exporter, so that its
dialect reads it. The means in `feedback_stats` are evaluations: of the first run those of the whole
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

SERVICE = "langsmith"
SESSION = ("session_id", "thread_id", "conversation_id")
"""Keys of metadata that name a conversation."""


class LangSmithRuns(RecordReader):
    """Reads one file."""

    written_by: ClassVar[str] = "LangSmith: runs in JSONL"

    @classmethod
    def reads(cls, record: dict[str, Any]) -> bool:
        return {"run_type", "trace_id", "start_time"} <= record.keys()

    def add(self, record: dict[str, Any]) -> Iterator[Request]:
        trace_id, span_id = hex_id(record["trace_id"], 32), hex_id(record["id"], 16)
        start = nanoseconds(record["start_time"])
        end = nanoseconds(record["end_time"]) if record.get("end_time") else start
        parent = record.get("parent_run_id")
        span = SpanRecord(
            trace_id=trace_id,
            span_id=span_id,
            parent_id=hex_id(parent, 16) if parent else "",
            name=record["name"],
            times=(start, end),
            attributes=_attributes(record),
            error=record.get("error") or "",
        )
        yield spans.request(SERVICE, span)
        judged = span_id if parent else ""
        for name, statistics in (record.get("feedback_stats") or {}).items():
            if isinstance(value := statistics.get("avg"), int | float):
                score = Score(
                    trace_id=trace_id, judged=judged, name=name, value=float(value), time=end
                )
                yield spans.evaluation(SERVICE, score)


def _attributes(record: dict[str, Any]) -> dict[str, Any]:
    extra = record.get("extra") or {}
    metadata, called = extra.get("metadata") or {}, extra.get("invocation_params") or {}
    named = {f"langsmith.metadata.{key}": as_text(value) for key, value in metadata.items()}
    return named | {
        "langsmith.span.kind": record["run_type"],
        "langsmith.trace.name": record["name"],
        "gen_ai.prompt": as_text(record.get("inputs")),
        "gen_ai.completion": as_text(record.get("outputs")),
        "gen_ai.request.model": called.get("model") or metadata.get("ls_model_name"),
        "gen_ai.request.temperature": called.get("temperature"),
        "gen_ai.usage.input_tokens": record.get("prompt_tokens"),
        "gen_ai.usage.output_tokens": record.get("completion_tokens"),
        "gen_ai.conversation.id": next((metadata[key] for key in SESSION if key in metadata), None),
    }
