import json
from typing import Any

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from ltrain_collector.errors import Malformed
from ltrain_collector.signals.otlp_json import parse_json

SPAN = {
    "traceId": "5B8EFFF798038103D269B633813FC60C",
    "spanId": "eee19b7ec3c1b174",
    "parentSpanId": "eee19b7ec3c1b173",
    "name": "I'm a server span",
    "startTimeUnixNano": "1544712660000000000",
    "endTimeUnixNano": 1544712661000000000,
    "kind": 2,
    "status": {"code": "STATUS_CODE_ERROR", "message": None},
    "attributes": [
        {"key": "my.span.attr", "value": {"stringValue": ""}},
        {"key": "n", "value": {"intValue": "-7"}},
        {"key": "d", "value": {"doubleValue": "NaN"}},
        {"key": "b", "value": {"bytesValue": "AP8"}},
        {"key": "a", "value": {"arrayValue": {"values": [{"boolValue": True}]}}},
        {"key": "e", "value": {"kvlistValue": {}}},
        {"key": "traceId", "value": {"stringValue": "not hex"}},
    ],
    "unknown": {"traceId": "not hex"},
}


def of_spans(*spans: object) -> bytes:
    return json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}).encode()


def parsed(*spans: object) -> Any:
    message = parse_json(of_spans(*spans), ExportTraceServiceRequest)
    return message.resource_spans[0].scope_spans[0].spans


def test_a_span_of_the_specification_is_read() -> None:
    (span,) = parsed(SPAN)
    assert span.trace_id.hex() == "5b8efff798038103d269b633813fc60c"
    assert span.span_id.hex() == "eee19b7ec3c1b174"
    assert span.parent_span_id.hex() == "eee19b7ec3c1b173"
    assert (span.start_time_unix_nano, span.end_time_unix_nano) == (
        1544712660000000000,
        1544712661000000000,
    )
    assert (span.kind, span.status.code, span.status.message) == (2, 2, "")
    values = {one.key: one.value for one in span.attributes}
    assert values["my.span.attr"].WhichOneof("value") == "string_value"
    assert values["n"].int_value == -7
    assert values["d"].double_value != values["d"].double_value
    assert values["b"].bytes_value == b"\x00\xff"
    assert values["a"].array_value.values[0].bool_value is True
    assert values["e"].WhichOneof("value") == "kvlist_value"
    assert values["traceId"].string_value == "not hex"


def test_logs_and_metrics_are_read() -> None:
    record = {"timeUnixNano": "5", "traceId": "01" * 16, "severityNumber": 9, "body": {}}
    logs: Any = parse_json(
        json.dumps({"resourceLogs": [{"scopeLogs": [{"logRecords": [record]}]}]}).encode(),
        ExportLogsServiceRequest,
    )
    read = logs.resource_logs[0].scope_logs[0].log_records[0]
    assert (read.time_unix_nano, read.trace_id, read.severity_number) == (5, b"\x01" * 16, 9)
    point = {"timeUnixNano": 5, "bucketCounts": ["1", 2], "explicitBounds": [0.5], "sum": 1}
    metric = {"name": "m", "histogram": {"dataPoints": [point], "aggregationTemporality": 2}}
    metrics: Any = parse_json(
        json.dumps({"resourceMetrics": [{"scopeMetrics": [{"metrics": [metric]}]}]}).encode(),
        ExportMetricsServiceRequest,
    )
    histogram = metrics.resource_metrics[0].scope_metrics[0].metrics[0].histogram
    assert list(histogram.data_points[0].bucket_counts) == [1, 2]
    assert (histogram.data_points[0].sum, histogram.aggregation_temporality) == (1.0, 2)


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("traceId", "W47/95gDgQPSabYzgT/GDA==", "traceId: non-hexadecimal"),
        ("traceId", 5, "traceId"),
        ("startTimeUnixNano", "soon", "startTimeUnixNano"),
        ("startTimeUnixNano", -1, "startTimeUnixNano"),
        ("startTimeUnixNano", 1.5, "expected an integer, not 1.5"),
        ("startTimeUnixNano", "9" * 5000, "startTimeUnixNano"),
        ("startTimeUnixNano", True, "expected an integer"),
        ("kind", "SERVER", "kind cannot be 'SERVER'"),
        ("name", 5, "expected a string, not 5"),
        ("attributes", {"a": 1}, "expected an array, not dict"),
        ("attributes", [5], "KeyValue must be an object, not 5"),
        ("status", [], "Status must be an object, not list"),
    ],
)
def test_a_field_that_cannot_be_is_named(field: str, value: object, says: str) -> None:
    with pytest.raises(Malformed) as caught:
        parsed({**SPAN, field: value})
    assert says in str(caught.value)


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"7", b'{"resourceSpans": [{"schemaUrl": "\\ud800"}]}', b"\xff"]
)
def test_what_is_not_json_is_refused(body: bytes) -> None:
    with pytest.raises(Malformed, match="not an OTLP ExportTraceServiceRequest in JSON"):
        parse_json(body, ExportTraceServiceRequest)


@pytest.mark.parametrize("deep", [99, 1000, 100_000])
def test_messages_within_messages_have_an_end(deep: int) -> None:
    value = '{"arrayValue":{"values":[' * deep + "{}" + "]}}" * deep
    body = f'{{"resourceSpans":[{{"resource":{{"attributes":[{{"value":{value}}}]}}}}]}}'
    with pytest.raises(Malformed):
        parse_json(body.encode(), ExportTraceServiceRequest)
