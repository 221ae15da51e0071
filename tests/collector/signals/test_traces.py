from datetime import UTC, datetime

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from tests.otlp import insert_otlp

from ltrain_collector.errors import BadRequest, TooLarge
from ltrain_collector.promoted_columns import NUMBER, columns_of
from ltrain_collector.signals import TRACES, writer
from ltrain_collector.signals.traces import encode_traces
from ltrain_collector.store import Store

NOON = 1_790_000_000_000_000_000


def one_span() -> tuple[ExportTraceServiceRequest, Span]:
    request = ExportTraceServiceRequest()
    resource = request.resource_spans.add()
    resource.resource.attributes.add(key="service.name").value.string_value = "agent"
    resource.resource.attributes.add(key="host.id").value.int_value = 7
    scoped = resource.scope_spans.add()
    scoped.scope.name, scoped.scope.version = "ltrain.gateway", "0.1"
    span = scoped.spans.add(name="chat policy", kind=Span.SPAN_KIND_SERVER)
    span.trace_id, span.span_id, span.parent_span_id = b"\x01" * 16, b"\x02" * 8, b"\x03" * 8
    span.start_time_unix_nano, span.end_time_unix_nano = NOON, NOON + 1500
    return request, span


def test_a_span_is_stored_as_the_exporter_stores_it(folder: Store) -> None:
    request, span = one_span()
    span.trace_state = "a=b"
    span.status.code, span.status.message = Status.STATUS_CODE_ERROR, "no such table"
    span.attributes.add(key="ltrain.rollout.id").value.string_value = "r1"
    span.attributes.add(key="ltrain.attempt.id").value.int_value = 1
    event = span.events.add(name="exception", time_unix_nano=NOON + 5)
    event.attributes.add(key="exception.type").value.string_value = "OperationalError"
    span.links.add(trace_id=b"\x0a" * 16, span_id=b"\x0b" * 8, trace_state="c=d")
    insert_otlp(folder, request.SerializeToString())
    (row,) = folder.query("SELECT * EXCEPT (IngestedAt) FROM otel.spans").to_dicts()
    noon = datetime.fromtimestamp(NOON / 1e9, UTC)
    assert row == {
        "Timestamp": noon,
        "TraceId": "01" * 16,
        "SpanId": "02" * 8,
        "ParentSpanId": "03" * 8,
        "TraceState": "a=b",
        "SpanName": "chat policy",
        "SpanKind": "Server",
        "ServiceName": "agent",
        "ResourceAttributes": {"service.name": "agent", "host.id": "7", "ltrain.sender": "local"},
        "ScopeName": "ltrain.gateway",
        "ScopeVersion": "0.1",
        "SpanAttributes": {"ltrain.rollout.id": "r1", "ltrain.attempt.id": "1"},
        "Duration": 1500,
        "StatusCode": "Error",
        "StatusMessage": "no such table",
        "Events.Timestamp": [noon],
        "Events.Name": ["exception"],
        "Events.Attributes": [{"exception.type": "OperationalError"}],
        "Links.TraceId": ["0a" * 16],
        "Links.SpanId": ["0b" * 8],
        "Links.TraceState": ["c=d"],
        "Links.Attributes": [{}],
        **{each.name: 0 if each.type == NUMBER else "" for each in columns_of("traces")},
        "RolloutId": "r1",
        "Attempt": "1",
        "Sender": "local",
    }


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(attributes=st.dictionaries(st.text(max_size=200), st.text(max_size=40_000), max_size=8))
def test_any_text_is_returned_unchanged(folder: Store, attributes: dict[str, str]) -> None:
    request, span = one_span()
    folder.command("TRUNCATE TABLE otel.otel_traces")
    for key, value in attributes.items():
        span.attributes.add(key=key).value.string_value = value
    insert_otlp(folder, request.SerializeToString())
    (row,) = folder.query("SELECT SpanAttributes FROM otel.spans").to_dicts()
    assert row["SpanAttributes"] == attributes


def test_an_end_before_the_start_is_a_duration_of_zero(folder: Store) -> None:
    request, span = one_span()
    span.end_time_unix_nano = 0
    span.kind, span.status.code = 99, 99  # type: ignore[assignment]
    insert_otlp(folder, request.SerializeToString())
    row = folder.query("SELECT Duration, SpanKind, StatusCode FROM otel.spans").row(0)
    assert row == (0, "Unspecified", "Unset")


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("trace_id", b"", "trace_id must have 16 bytes"),
        ("trace_id", bytes(16), "not all of them 0"),
        ("span_id", bytes(8), "not all of them 0"),
        ("span_id", b"\x01", "span_id 8"),
        ("start_time_unix_nano", 0, "start_time_unix_nano is 0"),
        ("start_time_unix_nano", 2**63, "more than a year ahead"),
    ],
)
def test_only_an_invalid_span_is_rejected(field: str, value: object, reason: str) -> None:
    request, span = one_span()
    good = request.resource_spans[0].scope_spans[0].spans.add()
    good.CopyFrom(span)
    setattr(span, field, value)
    rows = encode_traces(request)
    assert (rows.count, rows.rejected) == (1, 1)
    assert reason in rows.reason


def test_a_parent_id_of_zeros_is_none(folder: Store) -> None:
    request, span = one_span()
    span.parent_span_id = bytes(8)
    insert_otlp(folder, request.SerializeToString())
    assert folder.query("SELECT ParentSpanId FROM otel.spans").row(0) == ("",)


def test_a_resource_is_not_repeated_beyond_measure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "MAX_REPEATED_BYTES", 500)
    request, span = one_span()
    request.resource_spans[0].resource.attributes.add(key="k").value.string_value = "x" * 200
    assert encode_traces(request).count == 1
    spans = request.resource_spans[0].scope_spans[0].spans
    spans.add().CopyFrom(span)
    spans.add().CopyFrom(span)
    with pytest.raises(TooLarge, match="Send less at a time"):
        encode_traces(request)


def test_bytes_that_are_not_a_request_are_refused() -> None:
    with pytest.raises(BadRequest, match="application/json"):
        TRACES.encode_body(b'{"resourceSpans": []}')
