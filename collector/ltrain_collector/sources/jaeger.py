"""Jaeger's JSON: what its query API and its page's download have, `{"data": [TRACE]}`.

Times are in microseconds. The service is that of a span's process.
"""

from collections.abc import Iterator
from typing import Any, ClassVar

from ltrain_collector.sources import spans
from ltrain_collector.sources.spans import (
    Event,
    RecordReader,
    Request,
    SpanRecord,
    as_text,
    hex_id,
)

PARENT = "CHILD_OF"
STATUS, DESCRIPTION = "otel.status_code", "otel.status_description"
SCOPE = ("otel.scope.name", "otel.library.name")


class JaegerTraces(RecordReader):
    """Reads one file."""

    written_by: ClassVar[str] = "Jaeger: traces in JSON"

    @classmethod
    def reads(cls, record: dict[str, Any]) -> bool:
        traces = record.get("data", [record])
        first = traces[0] if isinstance(traces, list) and traces else {}
        return isinstance(first, dict) and {"traceID", "spans", "processes"} <= first.keys()

    def add(self, record: dict[str, Any]) -> Iterator[Request]:
        for trace in record.get("data", [record]):
            for span in trace["spans"]:
                yield _request(span, trace["processes"][span["processID"]])


def _request(span: dict[str, Any], process: dict[str, Any]) -> Request:
    tags = _values(span.get("tags") or [])
    failed = tags.get("error") in (True, "true") or tags.get(STATUS) == "ERROR"
    start = span["startTime"] * 1000
    parents = [each for each in span.get("references") or () if each["refType"] == PARENT]
    same = [each["spanID"] for each in parents if each["traceID"] == span["traceID"]]
    record = SpanRecord(
        trace_id=hex_id(span["traceID"].zfill(32), 32),
        span_id=hex_id(span["spanID"].zfill(16), 16),
        parent_id=hex_id(same[0].zfill(16), 16) if same else "",
        name=span["operationName"],
        times=(start, start + span["duration"] * 1000),
        attributes=tags,
        error=as_text(tags.get(DESCRIPTION) or "error") if failed else "",
        events=[_event(each) for each in span.get("logs") or ()],
        scope=next((as_text(tags[name]) for name in SCOPE if name in tags), ""),
        resource=_values(process.get("tags") or []),
    )
    return spans.request(process["serviceName"], record)


def _event(log: dict[str, Any]) -> Event:
    fields = _values(log.get("fields") or [])
    return Event(as_text(fields.pop("event", "log")), log["timestamp"] * 1000, fields)


def _values(tags: list[dict[str, Any]]) -> dict[str, Any]:
    return {tag["key"]: tag["value"] for tag in tags}
