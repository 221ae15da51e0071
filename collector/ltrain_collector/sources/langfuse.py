"""Exports of Langfuse in JSON or JSONL: observations, traces and scores, in any order.

The keys are those of its API (`traceId`) or of its batch exports (`trace_id`). An observation
becomes a span with the attributes of Langfuse's own SDK, so that its dialect reads it; a trace is
the node above its observations. Scores are evaluations, of an observation if they name one.
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

SERVICE = "langfuse"
AUTHORS = {"ANNOTATION": "human", "EVAL": "llm", "API": "code"}
"""The kinds of authors by the `source` of a score."""
PREFIX = "langfuse.observation."
TYPES = frozenset(
    {
        *("SPAN", "EVENT", "GENERATION", "AGENT", "TOOL", "CHAIN", "RETRIEVER", "EVALUATOR"),
        *("EMBEDDING", "GUARDRAIL"),
    }
)


class LangfuseExport(RecordReader):
    """Reads one file."""

    written_by: ClassVar[str] = "Langfuse: exports of observations, traces and scores"

    @classmethod
    def reads(cls, record: dict[str, Any]) -> bool:
        keys = _camel(record).keys()
        is_trace = {"id", "timestamp", "userId", "sessionId"} <= keys
        is_score = {"name", "value", "dataType"} <= keys
        return _is_observation(_camel(record)) or is_trace or is_score

    def add(self, record: dict[str, Any]) -> Iterator[Request]:
        own = _camel(record)
        if _is_observation(own):
            yield _observation(own)
        elif "dataType" in own or "traceId" in own:
            yield _score(own)
        else:
            yield _trace(own)
            place = {"traceId": own["id"], "timestamp": own["timestamp"]}
            # the API's lists of traces have ids only
            for observation in filter(_is_object, own.get("observations") or ()):
                yield _observation(place | _camel(observation))
            for score in filter(_is_object, own.get("scores") or ()):
                yield _score(place | _camel(score))


def _camel(record: dict[str, Any]) -> dict[str, Any]:
    """Return the record with the names of the API: `trace_id` is `traceId`."""
    return {_camel_name(key): value for key, value in record.items()}


def _camel_name(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word[:1].upper() + word[1:] for word in rest)


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


def _is_observation(own: dict[str, Any]) -> bool:
    return {"traceId", "startTime"} <= own.keys() and own.get("type") in TYPES


def _root(trace: str) -> str:
    return hex_id(f"trace {trace}", 16)


def _observation(own: dict[str, Any]) -> Request:
    start = nanoseconds(own["startTime"])
    end = nanoseconds(own["endTime"]) if own.get("endTime") else start
    parent = own.get("parentObservationId")
    failed = own.get("level") == "ERROR"
    span = SpanRecord(
        trace_id=hex_id(own["traceId"], 32),
        span_id=hex_id(own["id"], 16),
        parent_id=hex_id(parent, 16) if parent else _root(own["traceId"]),
        name=own.get("name") or own["type"].lower(),
        times=(start, end),
        attributes={
            f"{PREFIX}type": own["type"].lower(),
            f"{PREFIX}level": own.get("level"),
            f"{PREFIX}input": as_text(own.get("input")),
            f"{PREFIX}output": as_text(own.get("output")),
            f"{PREFIX}model.name": own.get("model") or own.get("providedModelName"),
            f"{PREFIX}model.parameters": as_text(own.get("modelParameters")),
            f"{PREFIX}usage_details": as_text(own.get("usageDetails") or own.get("usage")),
            "gen_ai.conversation.id": own.get("sessionId"),
            "user.id": own.get("userId"),
        },
        error=(own.get("statusMessage") or "error") if failed else "",
    )
    return spans.request(SERVICE, span)


def _trace(own: dict[str, Any]) -> Request:
    time = nanoseconds(own["timestamp"])
    seconds = own.get("latency") or 0
    span = SpanRecord(
        trace_id=hex_id(own["id"], 32),
        span_id=_root(own["id"]),
        name=own.get("name") or "trace",
        times=(time, time + round(seconds * 1e9)),
        attributes={
            f"{PREFIX}type": "span",
            f"{PREFIX}input": as_text(own.get("input")),
            f"{PREFIX}output": as_text(own.get("output")),
            "gen_ai.conversation.id": own.get("sessionId"),
            "user.id": own.get("userId"),
        },
    )
    return spans.request(SERVICE, span)


def _score(own: dict[str, Any]) -> Request:
    value, subject = own.get("value"), own.get("subject") or {}
    named = {f"{subject['kind']}Id": subject["id"], **subject} if subject else own
    trace, observation, session = map(named.get, ("traceId", "observationId", "sessionId"))
    if not trace and not session:
        raise ValueError("a score that names no trace and no session")
    score = Score(
        trace_id=hex_id(trace, 32) if trace else "",
        session="" if trace else str(session),
        judged=hex_id(observation, 16) if observation else "",
        name=own["name"],
        value=float(value) if isinstance(value, int | float) else None,
        label=own.get("stringValue") or (value if isinstance(value, str) else ""),
        time=nanoseconds(own.get("timestamp") or own["createdAt"]),
        note=own.get("comment") or "",
        author=AUTHORS.get(own.get("source") or "", ""),
        id=own.get("id") or "",
    )
    return spans.evaluation(SERVICE, score)
