"""agent-lightning's own spans, as its store dumps them in JSON, become OTLP."""

from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from ltrain_collector.errors import BadRequest

SCOPE = "agentlightning"
"""Its dumps do not say which instrumentation made a span."""

STATUS = {"OK": Status.STATUS_CODE_OK, "ERROR": Status.STATUS_CODE_ERROR}


def is_span(document: Any) -> bool:
    """Say whether a document is one of its spans."""
    return (
        isinstance(document, dict) and {"rollout_id", "span_id", "sequence_id"} <= document.keys()
    )


def request(document: dict[str, Any]) -> ExportTraceServiceRequest:
    """Give one span as a request.

    Raises:
        BadRequest: when a field is not of the type that agent-lightning 0.3 gives it.
    """
    try:
        return _request(document)
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise BadRequest(f"It is not a span of agent-lightning 0.3: {error!r}") from error


def _request(document: dict[str, Any]) -> ExportTraceServiceRequest:
    made = ExportTraceServiceRequest()
    resource = made.resource_spans.add()
    said = dict((document.get("resource") or {}).get("attributes") or {})
    said["agentlightning.rollout_id"] = document["rollout_id"]
    said["agentlightning.attempt_id"] = document["attempt_id"]
    said["agentlightning.span_sequence_id"] = document["sequence_id"]
    _fill(resource.resource.attributes, said)
    scoped = resource.scope_spans.add()
    scoped.scope.name = SCOPE
    span = scoped.spans.add(name=document["name"], kind=Span.SPAN_KIND_INTERNAL)
    span.trace_id = bytes.fromhex(document["trace_id"])
    span.span_id = bytes.fromhex(document["span_id"])
    span.parent_span_id = bytes.fromhex(document.get("parent_id") or "")
    span.start_time_unix_nano = _nanoseconds(document.get("start_time"))
    span.end_time_unix_nano = _nanoseconds(document.get("end_time"))
    status = document.get("status") or {}
    span.status.code = STATUS.get(str(status.get("status_code")), Status.STATUS_CODE_UNSET)
    span.status.message = status.get("description") or ""
    _fill(span.attributes, document.get("attributes") or {})
    for event in document.get("events") or ():
        added = span.events.add(name=event["name"], time_unix_nano=_nanoseconds(event["timestamp"]))
        _fill(added.attributes, event.get("attributes") or {})
    for link in document.get("links") or ():
        ids = {key: bytes.fromhex(link["context"][key]) for key in ("trace_id", "span_id")}
        _fill(span.links.add(**ids).attributes, link.get("attributes") or {})
    return made


def _nanoseconds(seconds: float | None) -> int:
    # microseconds are what a float of seconds holds of today's times
    return round((seconds or 0) * 1e6) * 1000


def _fill(attributes: Any, said: dict[str, Any]) -> None:
    for key, value in said.items():
        _set(attributes.add(key=key).value, value)


def _set(into: AnyValue, value: Any) -> None:
    if isinstance(value, bool):
        into.bool_value = value
    elif isinstance(value, int):
        into.int_value = value
    elif isinstance(value, float):
        into.double_value = value
    elif isinstance(value, list | tuple):
        into.array_value.SetInParent()
        for each in value:
            _set(into.array_value.values.add(), each)
    elif value is not None:
        into.string_value = str(value)
