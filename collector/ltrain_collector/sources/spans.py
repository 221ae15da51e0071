"""A span of another program's record, as an OTLP request for traces in JSON."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import md5
from typing import Any

from ltrain_instrument import attributes as names

Request = dict[str, Any]
"""An OTLP request for traces, as JSON."""

OK, ERROR = 1, 2
"""Codes of a span's status."""
EVALUATION = "gen_ai.evaluation.result"
MILLISECOND = 1_000_000
"""Nanoseconds between two records of a file without times."""
UNITS = ((1e11, 1_000_000_000), (1e14, 1_000_000), (1e17, 1000))
"""Below each limit, a number is a time in units of so many nanoseconds: until the year 5000."""


@dataclass(frozen=True, slots=True)
class Event:
    """An event of a span, such as an exception."""

    name: str
    time: int
    """Nanoseconds since the epoch."""
    attributes: Mapping[str, Any]


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
    events: Sequence[Event] = ()
    scope: str = ""
    """The instrumentation; '' where the platform keeps none."""
    resource: Mapping[str, Any] = field(default_factory=dict)
    """Attributes of the resource beside the service's name and version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """A score, an annotation or a human's label of an execution or a span."""

    trace_id: str = ""
    session: str = ""
    """The id of the judged session, without a trace."""
    judged: str = ""
    """The id of the judged span; '' for the whole execution."""
    name: str
    value: float | None
    """None for one that is only a label or a note."""
    time: int
    """Nanoseconds since the epoch."""
    label: str = ""
    note: str = ""
    author: str = ""
    """The kind of who wrote it: human, llm or code."""
    id: str = ""
    """Its id at its platform: scores of one name with several ids are several."""


class RecordReader:
    """The part of a `FileReader` that is the same where each record is read by itself."""

    def __init__(self, modified: int) -> None:
        pass

    def end(self) -> Iterator[Request]:
        yield from ()


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
        "events": [
            {
                "name": event.name,
                "timeUnixNano": str(event.time),
                "attributes": _attributes(event.attributes),
            }
            for event in span.events
        ],
        "status": {"code": ERROR, "message": span.error} if span.error else {"code": OK},
    }
    resource = {**span.resource, "service.name": service, "service.version": version}
    scope = span.scope or _scope(span.attributes) or f"ltrain.import.{service}"
    scoped = {"scope": {"name": scope}, "spans": [encoded]}
    return {
        "resourceSpans": [
            {"resource": {"attributes": _attributes(resource)}, "scopeSpans": [scoped]}
        ]
    }


def evaluation(service: str, score: Score) -> Request:
    """Return the span of a score.

    That of a span with a model, tool or retrieval judges this call; that of another span, such as
    an agent's, judges the execution.
    """
    trace_id = score.trace_id or hex_id(f"session {score.session}", 32)
    place = " ".join(filter(None, (trace_id, score.judged, score.name, score.id)))
    span = SpanRecord(
        trace_id=trace_id,
        span_id=hex_id(f"evaluation {place}", 16),
        parent_id=score.judged,
        name=EVALUATION,
        times=(score.time, score.time),
        attributes={
            "gen_ai.evaluation.name": score.name,
            "gen_ai.evaluation.score.value": score.value,
            "gen_ai.evaluation.score.label": score.label,
            "gen_ai.evaluation.explanation": score.note,
            names.EVALUATION_AUTHOR: score.author.lower(),
            "gen_ai.conversation.id": score.session,
            "ltrain.reward.scope": "" if score.judged else "rollout",
        },
    )
    return request(service, span)


def _scope(attributes: Mapping[str, Any]) -> str:
    """Return ltrain's scope of a span whose platform kept none; '' for other instrumentations.

    Tokens without the mark of the gateway are those of a capture. Neither is a proof: readers
    believe the sender, which is `import`.
    """
    if attributes.get(names.RECORDER) == names.SCOPE_GATEWAY or names.UNTIMED in attributes:
        return names.SCOPE_GATEWAY
    return names.SCOPE_CAPTURE if names.RESPONSE_TOKEN_IDS in attributes else ""


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


def nanoseconds(time: str | float) -> int:
    """Return a time in nanoseconds since the epoch.

    Args:
        time: ISO 8601, in UTC if it names no zone; or a number since the epoch, in seconds, milli-,
            micro- or nanoseconds, which its size tells.
    """
    if isinstance(time, int | float):
        unit = next((unit for limit, unit in UNITS if abs(time) < limit), 1)
        return int(time) * unit if isinstance(time, int) else round(time * unit)
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
    if isinstance(value, list) and not any(isinstance(each, dict | list) for each in value):
        return {"arrayValue": {"values": [_encode(each) for each in value]}}
    return {"stringValue": as_text(value)}
