"""A span of another program's record, as an OTLP request for traces in JSON."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import md5
from typing import Any

Request = dict[str, Any]
"""An OTLP request for traces, as JSON."""

OK, ERROR = 1, 2
"""Codes of a span's status."""
EVALUATION = "gen_ai.evaluation.result"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanRecord:
    """One span."""

    trace_id: str
    span_id: str
    parent_id: str = ""
    name: str
    times: tuple[int, int]
    """Start and end, in nanoseconds since the epoch."""
    attributes: Mapping[str, Any]
    error: str = ""
    """The message of a failure."""


def request(service: str, span: SpanRecord, version: str = "") -> Request:
    """Return the request with the span of a service."""
    encoded = {
        "traceId": span.trace_id,
        "spanId": span.span_id,
        "parentSpanId": span.parent_id,
        "name": span.name,
        "kind": 1,
        "startTimeUnixNano": str(span.times[0]),
        "endTimeUnixNano": str(max(span.times)),
        "attributes": _attributes(span.attributes),
        "status": {"code": ERROR, "message": span.error} if span.error else {"code": OK},
    }
    resource = {"service.name": service, "service.version": version}
    scoped = {"scope": {"name": f"ltrain.import.{service}"}, "spans": [encoded]}
    return {
        "resourceSpans": [
            {"resource": {"attributes": _attributes(resource)}, "scopeSpans": [scoped]}
        ]
    }


def evaluation(
    service: str, place: tuple[str, str], name: str, value: float, time: int, note: str = ""
) -> Request:
    """Return the span of a score.

    Args:
        place: the trace, and the judged span in it, or '' for the whole execution.
    """
    trace_id, judged = place
    span = SpanRecord(
        trace_id=trace_id,
        span_id=hex_id(f"{trace_id} {judged} {name}", 16),
        parent_id=judged,
        name=EVALUATION,
        times=(time, time),
        attributes={
            "gen_ai.evaluation.name": name,
            "gen_ai.evaluation.score.value": value,
            "gen_ai.evaluation.explanation": note,
            "ltrain.reward.scope": "call" if judged else "rollout",
        },
    )
    return request(service, span)


def hex_id(text: str, digits: int) -> str:
    """Return an id of hexadecimal digits: that of the text if it is one, else a digest of it."""
    plain = text.replace("-", "").lower()
    is_id = re.fullmatch(r"[0-9a-f]+", plain) is not None and len(plain) == digits
    return plain if is_id and set(plain) != {"0"} else md5(text.encode()).hexdigest()[:digits]


def as_text(value: Any) -> str:
    """Return a value as text: itself, or JSON; '' for none."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def nanoseconds(time: str) -> int:
    """Return a time of ISO 8601, in UTC if it names no zone, in nanoseconds since the epoch."""
    parsed = datetime.fromisoformat(time)
    aware = parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)
    return round(aware.timestamp() * 1e6) * 1000


def _attributes(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return attributes as OTLP's JSON has them, without empty ones."""
    present = {key: value for key, value in values.items() if value not in (None, "", [])}
    return [{"key": key, "value": _encode(value)} for key, value in present.items()]


def _encode(value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    if isinstance(value, list):
        return {"arrayValue": {"values": [_encode(each) for each in value]}}
    return {"stringValue": str(value)}
