"""Everything that OpenTelemetry's own exporters send over both protocols can be queried."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import grpc
import pytest
from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.exporter.otlp.proto.grpc._log_exporter import OTLPLogExporter as GrpcLogs
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter as GrpcMetrics
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcSpans
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter as HttpLogs
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter as HttpMetrics
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpSpans
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import SimpleLogRecordProcessor
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Status, StatusCode

from ltrain_collector.store import Store

NOON = 1_790_000_000_000_000_000
MOMENT = datetime.fromtimestamp(NOON / 1e9, UTC)
NEVER = datetime.fromtimestamp(0, UTC)

PROTOCOLS = ("http", "http+gzip", "grpc", "grpc+gzip")

each = pytest.mark.parametrize("protocol", PROTOCOLS)


class Numbered(IdGenerator):
    def __init__(self, trace: int) -> None:
        self.trace = trace
        self.span = 0

    def generate_span_id(self) -> int:
        self.span += 1
        return self.span

    def generate_trace_id(self) -> int:
        return self.trace


@pytest.fixture
def store(up: Any) -> Iterator[Store]:
    with Store.open(up.dsn) as opened:
        yield opened


def exporter(
    up: Any,
    protocol: str,
    signal: str,
    over_http: Callable[..., Any],
    over_grpc: Callable[..., Any],
) -> Any:
    name, _, packed = protocol.partition("+")
    if name == "http":
        compression = Compression.Gzip if packed else Compression.NoCompression
        endpoint = f"http://127.0.0.1:{up.otlp}/v1/{signal}"
        return over_http(endpoint=endpoint, compression=compression)
    packing = grpc.Compression.Gzip if packed else grpc.Compression.NoCompression
    return over_grpc(endpoint=f"http://127.0.0.1:{up.grpc}", insecure=True, compression=packing)


@each
def test_spans(up: Any, store: Store, protocol: str) -> None:
    trace = 1000 + PROTOCOLS.index(protocol)
    resource = Resource({"service.name": "sql-agent", "ltrain.run.id": protocol})
    provider = TracerProvider(resource=resource, id_generator=Numbered(trace))
    sender = exporter(up, protocol, "traces", HttpSpans, GrpcSpans)
    provider.add_span_processor(SimpleSpanProcessor(sender))
    tracer = provider.get_tracer("agent", "1.0")
    span = tracer.start_span("chat", start_time=NOON, attributes={"ids": [1, 2], "ok": True})
    span.add_event("exception", {"exception.type": "ValueError"}, timestamp=NOON + 5)
    span.set_status(Status(StatusCode.ERROR, "bad"))
    span.end(NOON + 1500)
    provider.shutdown()
    sql = (
        "SELECT * EXCEPT (IngestedAt, TaskId, Domain, Mode, Wave, SampleIndex, PolicyName, "
        "PolicyVersion, GenAiOp, GenAiModel, InTokens, OutTokens, ToolName, Sender) "
        "FROM otel.spans WHERE RunId = {run:String}"
    )
    assert store.query(sql, {"run": protocol}).to_dicts() == [
        {
            "Timestamp": MOMENT,
            "TraceId": f"{trace:032x}",
            "SpanId": f"{1:016x}",
            "ParentSpanId": "",
            "TraceState": "",
            "SpanName": "chat",
            "SpanKind": "Internal",
            "ServiceName": "sql-agent",
            "ResourceAttributes": {
                "service.name": "sql-agent",
                "ltrain.run.id": protocol,
                "ltrain.sender": "none",
            },
            "ScopeName": "agent",
            "ScopeVersion": "1.0",
            "SpanAttributes": {"ids": "[1,2]", "ok": "true"},
            "Duration": 1500,
            "StatusCode": "Error",
            "StatusMessage": "bad",
            "Events.Timestamp": [MOMENT],
            "Events.Name": ["exception"],
            "Events.Attributes": [{"exception.type": "ValueError"}],
            "Links.TraceId": [],
            "Links.SpanId": [],
            "Links.TraceState": [],
            "Links.Attributes": [],
            "RunId": protocol,
            "RolloutId": "",
            "Attempt": "",
        }
    ]


@each
def test_log_records(up: Any, store: Store, protocol: str) -> None:
    resource = Resource({"service.name": "sql-agent", "ltrain.rollout.id": protocol})
    provider = LoggerProvider(resource=resource)
    sender = exporter(up, protocol, "logs", HttpLogs, GrpcLogs)
    provider.add_log_record_processor(SimpleLogRecordProcessor(sender))
    provider.get_logger("agent", "1.0", "https://scope").emit(
        LogRecord(
            timestamp=NOON,
            severity_text="WARN",
            severity_number=SeverityNumber.WARN,
            body={"rows": [1, 2.5]},
            attributes={"k": "v"},
            event_name="sql.failed",
        )
    )
    provider.shutdown()
    sql = "SELECT * EXCEPT (IngestedAt, Sender) FROM otel.logs WHERE RolloutId = {rollout:String}"
    assert store.query(sql, {"rollout": protocol}).to_dicts() == [
        {
            "Timestamp": MOMENT,
            "TimestampTime": NOON // 10**9,
            "TraceId": "",
            "SpanId": "",
            "TraceFlags": 0,
            "SeverityText": "WARN",
            "SeverityNumber": 13,
            "ServiceName": "sql-agent",
            "Body": '{"rows":[1,2.5]}',
            "ResourceSchemaUrl": "",
            "ResourceAttributes": {
                "service.name": "sql-agent",
                "ltrain.rollout.id": protocol,
                "ltrain.sender": "none",
            },
            "ScopeSchemaUrl": "https://scope",
            "ScopeName": "agent",
            "ScopeVersion": "1.0",
            "ScopeAttributes": {},
            "LogAttributes": {"k": "v"},
            "EventName": "sql.failed",
            "RunId": "",
            "RolloutId": protocol,
            "Attempt": "",
        }
    ]


@each
def test_data_points(up: Any, store: Store, protocol: str) -> None:
    number = NumberDataPoint({"policy": 7}, 0, NOON, 3)
    spread = HistogramDataPoint({}, 0, NOON, 3, 6.5, [1, 2], [0.5], 0.25, 4.0)
    delta = AggregationTemporality.DELTA
    metrics = [
        Metric("queue", "waiting", "1", Gauge([number])),
        Metric("tokens", "", "", Sum([number], AggregationTemporality.CUMULATIVE, True)),
        Metric("latency", "", "s", Histogram([spread], delta)),
    ]
    scoped = ScopeMetrics(InstrumentationScope("gateway", "1.0"), metrics, "")
    service = f"gateway-{protocol}"
    of_resource = ResourceMetrics(Resource({"service.name": service}), [scoped], "")
    sender = exporter(up, protocol, "metrics", HttpMetrics, GrpcMetrics)
    assert sender.export(MetricsData([of_resource])) is MetricExportResult.SUCCESS
    sender.shutdown()
    common = {
        "ResourceAttributes": {"service.name": service, "ltrain.sender": "none"},
        "ResourceSchemaUrl": "",
        "ScopeName": "gateway",
        "ScopeVersion": "1.0",
        "ScopeAttributes": {},
        "ScopeDroppedAttrCount": 0,
        "ScopeSchemaUrl": "",
        "ServiceName": service,
        "MetricDescription": "",
        "MetricUnit": "",
        "Attributes": {"policy": "7"},
        "StartTimeUnix": NEVER,
        "TimeUnix": MOMENT,
        "Flags": 0,
        "Exemplars.FilteredAttributes": [],
        "Exemplars.TimeUnix": [],
        "Exemplars.Value": [],
        "Exemplars.SpanId": [],
        "Exemplars.TraceId": [],
    }
    expected = {
        "gauge": {
            **common,
            "MetricName": "queue",
            "MetricDescription": "waiting",
            "MetricUnit": "1",
            "Value": 3.0,
        },
        "sum": {
            **common,
            "MetricName": "tokens",
            "Value": 3.0,
            "AggregationTemporality": 2,
            "IsMonotonic": True,
        },
        "histogram": {
            **common,
            "MetricName": "latency",
            "MetricUnit": "s",
            "Attributes": {},
            "Count": 3,
            "Sum": 6.5,
            "BucketCounts": [1, 2],
            "ExplicitBounds": [0.5],
            "Min": 0.25,
            "Max": 4.0,
            "AggregationTemporality": 1,
        },
    }
    for kind, row in expected.items():
        sql = f"SELECT * EXCEPT (IngestedAt) FROM otel.metrics_{kind}"
        stored = store.query(f"{sql} WHERE ServiceName = {{name:String}}", {"name": service})
        assert stored.to_dicts() == [row]
