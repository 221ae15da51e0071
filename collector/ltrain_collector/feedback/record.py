"""One feedback: parsed from JSON, and written as an evaluation span of its target.

Feedback with an `id` is stored once however often it is sent: its span's ids are a hash of the id
and the target, and a repeated span keeps the time of the stored one.
"""

import secrets
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Annotated, Any, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from ltrain_collector.errors import Malformed
from ltrain_collector.store import Store
from ltrain_instrument import attributes
from ltrain_instrument.feedback import WITHDRAWN, Target, to_score

MAX_FEEDBACK = 1000
"""Feedback in one request."""

MAX_FAULTS = 5
"""Faults that the refusal of a request names."""

SERVICE = "ltrain-feedback"
"""The service name of the spans."""

Text = Annotated[str, Field(min_length=1, max_length=500)]
Times = Mapping[bytes, int]
"""Start in nanoseconds since the epoch, by span id."""


SpanId = Annotated[str, Field(pattern="^[0-9a-f]{16}$")]


class Feedback(BaseModel):
    """One value, note or withdrawal, for a rollout, a trace, a session or a call."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    value: Annotated[float, AfterValidator(to_score)] | None = None
    """The reward; the recipe gives it a weight and bounds. Without it, a comment is a note."""
    rollout: Text | None = None
    """The target: the id of a rollout,"""
    trace: Text | None = None
    """or the id of a trace, 32 lower-case hexadecimal digits,"""
    session: Text | None = None
    """or the id of a session."""
    call: SpanId | None = None
    """The id of a span of the trace: only this call is judged."""
    name: Text = "reward"
    """The name that a recipe's `evaluation` names."""
    comment: Annotated[str, Field(max_length=10_000)] | None = None
    withdrawn: bool = False
    """Whether it withdraws all earlier feedback of its name on its target."""
    id: Text | None = None
    """The client's id of this feedback; a repeated id is stored once."""

    @model_validator(mode="after")
    def _one_target(self) -> Self:
        if Target.from_ids(self.rollout, self.trace, self.session) is None:
            raise ValueError("It names no target. Add 'rollout', 'trace' or 'session'.")
        if self.call is not None and self.trace is None:
            raise ValueError("A call is named by its span in 'call' and its 'trace'. Add 'trace'.")
        return self

    @model_validator(mode="after")
    def _one_content(self) -> Self:
        if self.withdrawn and self.value is not None:
            raise ValueError("'withdrawn' has no value. Remove one of the two.")
        if self.value is None and not self.comment and not self.withdrawn:
            raise ValueError("It has no content. Add 'value', 'comment' or 'withdrawn'.")
        return self

    @property
    def target(self) -> Target:
        """The execution that it judges."""
        target = Target.from_ids(self.rollout, self.trace, self.session)
        assert target is not None, "checked when it was parsed"
        return target

    @property
    def trace_id(self) -> bytes:
        """The 16 bytes of its span's trace: that of its target, else one of its own."""
        return bytes.fromhex(self.trace) if self.trace else self._hash(b"trace")[:16]

    @property
    def span_id(self) -> bytes:
        """The 8 bytes of its span's id."""
        return self._hash(b"span")[:8]

    def _hash(self, what: bytes) -> bytes:
        if self.id is None:
            return secrets.token_bytes(16)
        call = (self.call,) if self.call else ()
        parts = (self.target.kind, self.target.id, *call, self.name, self.id)
        return sha256(b"\x1f".join((what, *(part.encode() for part in parts)))).digest()


_LIST = TypeAdapter(Annotated[list[Feedback], Field(min_length=1, max_length=MAX_FEEDBACK)])


def parse_feedback(body: bytes) -> list[Feedback]:
    """Return the feedback of a JSON object, or of a list of them.

    Raises:
        Malformed: the body is something else; the message names each fault.
    """
    try:
        if body.lstrip().startswith(b"["):
            return _LIST.validate_json(body)
        return [Feedback.model_validate_json(body)]
    except ValidationError as error:
        faults = error.errors(include_url=False)[:MAX_FAULTS]
        raise Malformed(
            f"This is no feedback: {'; '.join(map(_fault, faults))}. Send e.g. "
            '{"trace": "…", "name": "thumbs", "value": 1}.'
        ) from error


def _fault(fault: Mapping[str, Any]) -> str:
    message = str(fault["msg"]).removeprefix("Value error, ").rstrip(".")
    return ": ".join((*filter(None, [".".join(map(str, fault["loc"]))]), message))


def read_times(store: Store, feedback: Sequence[Feedback]) -> dict[bytes, int]:
    """Return the times of the spans of repeated feedback that are stored."""
    repeated = {one.span_id: one.trace_id for one in feedback if one.id is not None}
    if not repeated:
        return {}
    sql = (
        "SELECT SpanId AS span, min(toUnixTimestamp64Nano(Timestamp)) AS time FROM otel.spans "
        "WHERE TraceId IN {traces:Array(String)} AND SpanId IN {spans:Array(String)} "
        f"AND SpanName = '{attributes.SPAN_EVALUATION}' GROUP BY SpanId"
    )
    params = {
        "traces": [trace.hex() for trace in repeated.values()],
        "spans": [span.hex() for span in repeated],
    }
    rows = store.query(sql, params).iter_rows()
    return {bytes.fromhex(str(span)): int(time) for span, time in rows}


def to_request(
    feedback: Sequence[Feedback], now: int, times: Times | None = None, person: str | None = None
) -> ExportTraceServiceRequest:
    """Return an OTLP request with one evaluation span for each feedback.

    Args:
        now: nanoseconds since the epoch.
        times: the result of `read_times`.
        person: the name of the person who gave it by hand; None for feedback of a program.
    """
    request = ExportTraceServiceRequest()
    resource = request.resource_spans.add()
    resource.resource.attributes.append(_text("service.name", SERVICE))
    scoped = resource.scope_spans.add()
    scoped.scope.name = attributes.SCOPE_PERSON if person else attributes.SCOPE_FEEDBACK
    scoped.spans.extend(_span(one, now, times or {}) for one in feedback)
    if person:
        for span in scoped.spans:
            span.attributes.append(_text(attributes.USER_NAME, person))
    return request


def _span(feedback: Feedback, now: int, times: Times) -> Span:
    span_id = feedback.span_id
    start = times.get(span_id, now)
    span = Span(
        trace_id=feedback.trace_id,
        span_id=span_id,
        name=attributes.SPAN_EVALUATION,
        start_time_unix_nano=start,
        end_time_unix_nano=start,
    )
    texts = {
        **feedback.target.attributes(),
        attributes.EVALUATION_NAME: feedback.name,
        attributes.EVALUATION_EXPLANATION: feedback.comment,
        attributes.EVALUATION_LABEL: WITHDRAWN if feedback.withdrawn else None,
        attributes.REWARD_SCOPE: "call" if feedback.call else "rollout",
    }
    span.attributes.extend(_text(name, text) for name, text in texts.items() if text)
    if feedback.call:
        span.parent_span_id = bytes.fromhex(feedback.call)
    if feedback.value is not None:
        value = AnyValue(double_value=feedback.value)
        span.attributes.append(KeyValue(key=attributes.EVALUATION_VALUE, value=value))
    return span


def _text(name: str, text: str) -> KeyValue:
    return KeyValue(key=name, value=AnyValue(string_value=text))
