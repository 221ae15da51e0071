"""Exports of Braintrust's logs in JSONL: a span a line, as its API and its page have them.

A span becomes one with the attributes of Braintrust's own SDKs, so that its dialect reads it. Its
scores are evaluations: of the root span those of the whole trace.
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

SERVICE, PREFIX = "braintrust", "braintrust."


class BraintrustLogs(RecordReader):
    """Reads one file."""

    written_by: ClassVar[str] = "Braintrust: logs in JSONL"

    @classmethod
    def reads(cls, record: dict[str, Any]) -> bool:
        return {"span_id", "root_span_id", "span_attributes"} <= record.keys()

    def add(self, record: dict[str, Any]) -> Iterator[Request]:
        attributes, metrics = record["span_attributes"] or {}, record.get("metrics") or {}
        metadata = record.get("metadata") or {}
        root, own = record["root_span_id"], record["span_id"]
        parents = record.get("span_parents") or []
        created = nanoseconds(record["created"])
        start = nanoseconds(metrics["start"]) if "start" in metrics else created
        end = nanoseconds(metrics["end"]) if "end" in metrics else start
        span = SpanRecord(
            trace_id=hex_id(root, 32),
            span_id=hex_id(own, 16),
            parent_id=hex_id(parents[0], 16) if parents else "",
            name=attributes.get("name") or "span",
            times=(start, end),
            attributes={
                f"{PREFIX}span_attributes": as_text(attributes),
                f"{PREFIX}input_json": as_text(record.get("input")),
                f"{PREFIX}output_json": as_text(record.get("output")),
                f"{PREFIX}metadata": as_text(metadata),
                f"{PREFIX}metrics": as_text(metrics),
                "gen_ai.conversation.id": metadata.get("session_id") or metadata.get("thread_id"),
            },
            error=as_text(record.get("error")),
        )
        yield spans.request(SERVICE, span)
        for name, value in (record.get("scores") or {}).items():
            if value is not None:
                score = Score(
                    trace_id=hex_id(root, 32),
                    judged=hex_id(own, 16) if parents else "",
                    name=name,
                    value=float(value),
                    time=end,
                )
                yield spans.evaluation(SERVICE, score)
