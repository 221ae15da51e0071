"""Convert the JSON spans that agent-lightning's store dumps to OTLP."""

from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from ltrain_collector.errors import BadRequest

SCOPE = "agentlightning"
"""The scope of all spans: the dumps do not contain the instrumentation."""

STATUS = {"OK": Status.STATUS_CODE_OK, "ERROR": Status.STATUS_CODE_ERROR}


def is_span(document: Any) -> bool:
    """Return whether a document is a span of agent-lightning."""
    return (
        isinstance(document, dict) and {"rollout_id", "span_id", "sequence_id"} <= document.keys()
    )


def span_request(document: dict[str, Any]) -> ExportTraceServiceRequest:
    """Convert one span to a request."""
    try:
        return _convert(document)
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise BadRequest(f"it is not a span of agent-lightning 0.3: {error!r}") from error


def _convert(document: dict[str, Any]) -> ExportTraceServiceRequest:
    request = ExportTraceServiceRequest()
    resource = request.resource_spans.add()
    attributes = dict((document.get("resource") or {}).get("attributes") or {})
    attributes["agentlightning.rollout_id"] = document["rollout_id"]
    attributes["agentlightning.attempt_id"] = document["attempt_id"]
    attributes["agentlightning.span_sequence_id"] = document["sequence_id"]
    _add_attributes(resource.resource.attributes, attributes)
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
    _add_attributes(span.attributes, document.get("attributes") or {})
    for event in document.get("events") or ():
        added = span.events.add(name=event["name"], time_unix_nano=_nanoseconds(event["timestamp"]))
        _add_attributes(added.attributes, event.get("attributes") or {})
    for link in document.get("links") or ():
        ids = {key: bytes.fromhex(link["context"][key]) for key in ("trace_id", "span_id")}
        _add_attributes(span.links.add(**ids).attributes, link.get("attributes") or {})
    return request


def _nanoseconds(seconds: float | None) -> int:
    # a float of Unix seconds is precise to microseconds
    return round((seconds or 0) * 1e6) * 1000


def _add_attributes(target: Any, attributes: dict[str, Any]) -> None:
    for key, value in attributes.items():
        _set_value(target.add(key=key).value, value)


def _set_value(into: AnyValue, value: Any) -> None:
    if isinstance(value, bool):
        into.bool_value = value
    elif isinstance(value, int):
        into.int_value = value
    elif isinstance(value, float):
        into.double_value = value
    elif isinstance(value, list | tuple):
        into.array_value.SetInParent()
        for each in value:
            _set_value(into.array_value.values.add(), each)
    elif value is not None:
        into.string_value = str(value)
