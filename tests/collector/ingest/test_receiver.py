import gzip
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Status, StatusCode

from ltrain_collector.store import Store

PROTOBUF = {"Content-Type": "application/x-protobuf"}


@pytest.fixture
def store(up: Any) -> Iterator[Store]:
    with Store.open(up.dsn) as opened:
        yield opened


def send(
    port: int, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
) -> tuple[int, bytes]:
    connection = HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def count(store: Store, rollout: str) -> int:
    sql = "SELECT count() AS n FROM otel.spans WHERE RolloutId = {rollout:String}"
    return int(store.query(sql, {"rollout": rollout})["n"].item())


@pytest.mark.parametrize("compression", [Compression.NoCompression, Compression.Gzip])
def test_the_sdk_exporter_is_understood(up: Any, store: Store, compression: Compression) -> None:
    rollout = f"sdk-{compression.value}"
    provider = TracerProvider(resource=Resource({"service.name": "sql-agent"}))
    exporter = OTLPSpanExporter(
        endpoint=f"http://127.0.0.1:{up.otlp}/v1/traces", compression=compression
    )
    provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=100))
    tracer = provider.get_tracer("agent", "1.0")
    who = {"ltrain.rollout.id": rollout}
    with tracer.start_as_current_span("outer", attributes=who) as outer:
        outer.set_attribute("ids", [1, 2, 3])
        with tracer.start_as_current_span(
            "inner", attributes={"ltrain.rollout.id": rollout}
        ) as one:
            one.add_event("exception", {"exception.type": "ValueError"})
            one.set_status(Status(StatusCode.ERROR, "bad"))
    provider.shutdown()
    given = store.query(
        "SELECT SpanName, ServiceName, SpanAttributes['ids'] AS ids, StatusCode, StatusMessage, "
        "Events.Name AS events, ParentSpanId = '' AS root FROM otel.spans "
        "WHERE RolloutId = {rollout:String} ORDER BY SpanName",
        {"rollout": rollout},
    )
    assert given.rows() == [
        ("inner", "sql-agent", "", "Error", "bad", ["exception"], 0),
        ("outer", "sql-agent", "[1, 2, 3]", "Unset", "", [], 1),
    ]


def test_rows_are_readable_once_they_are_answered_for(
    up: Any, store: Store, request_of: Callable[..., bytes]
) -> None:
    for number in range(5):
        body = request_of((1, number + 1), ltrain__rollout__id="at-once")
        assert send(up.otlp, "POST", "/v1/traces", body, PROTOBUF) == (200, b"")
        assert count(store, "at-once") == number + 1


def test_requests_that_arrive_together_are_inserted_together(
    up: Any, store: Store, request_of: Callable[..., bytes]
) -> None:
    before = json.loads(send(up.otlp, "GET", "/health")[1])
    barrier = threading.Barrier(16)

    def one(number: int) -> int:
        body = request_of((number + 1, 1), ltrain__rollout__id="together")
        barrier.wait()
        return send(up.otlp, "POST", "/v1/traces", body, PROTOBUF)[0]

    with ThreadPoolExecutor(16) as pool:
        assert set(pool.map(one, range(16))) == {200}
    after = json.loads(send(up.otlp, "GET", "/health")[1])
    assert after["requests"] - before["requests"] == 16
    assert after["inserts"] - before["inserts"] < 12
    assert count(store, "together") == 16


def test_an_impossible_span_is_told_and_the_others_stay(
    up: Any, store: Store, request_of: Callable[..., bytes]
) -> None:
    good = request_of((1, 1), (1, 2), ltrain__rollout__id="partly")
    bad = request_of((1, 3), start=2**63, ltrain__rollout__id="partly")
    status, body = send(up.otlp, "POST", "/v1/traces", good + bad, PROTOBUF)
    partial = ExportTraceServiceResponse.FromString(body).partial_success
    assert (status, partial.rejected_spans) == (200, 1)
    assert "more than a year ahead" in partial.error_message
    assert count(store, "partly") == 2


@pytest.mark.parametrize(
    ("path", "body", "headers", "status", "says"),
    [
        ("/v1/traces", b"{}", {"Content-Type": "application/json"}, 415, "http/protobuf"),
        ("/v1/traces", b"\xff\xff", PROTOBUF, 400, "not an OTLP"),
        ("/v1/traces", b"abc", {**PROTOBUF, "Content-Encoding": "gzip"}, 400, "not gzip"),
        (
            "/v1/traces",
            gzip.compress(b"x" * 1000, mtime=0)[:-9],
            {**PROTOBUF, "Content-Encoding": "gzip"},
            400,
            "ends too early",
        ),
        (
            "/v1/traces",
            gzip.compress(bytes(65 << 20), 1, mtime=0),
            {**PROTOBUF, "Content-Encoding": "gzip"},
            413,
            "longer than 64 MiB",
        ),
        ("/v1/traces", b"abc", {**PROTOBUF, "Content-Encoding": "br"}, 415, "gzip or none"),
        ("/v1/logs", b"", PROTOBUF, 404, "OTEL_LOGS_EXPORTER=none"),
        ("/v1/metrics", b"", PROTOBUF, 404, "OTEL_METRICS_EXPORTER=none"),
        ("/v1/trace", b"", PROTOBUF, 404, "POST /v1/traces"),
        ("/v1/traces", b"", {**PROTOBUF, "Origin": "http://evil.example"}, 403, "this machine"),
        ("/v1/traces", b"", {**PROTOBUF, "Host": "evil.example"}, 403, "this machine"),
    ],
)
def test_a_bad_request_is_told_what_is_wrong(
    up: Any, path: str, body: bytes, headers: dict[str, str], status: int, says: str
) -> None:
    answer = send(up.otlp, "POST", path, body, headers)
    assert answer[0] == status
    assert says in answer[1].decode()


def test_an_empty_request_is_a_good_one(up: Any) -> None:
    assert send(up.otlp, "POST", "/v1/traces", b"", PROTOBUF) == (200, b"")


def test_a_client_that_leaves_in_the_middle_harms_nobody(up: Any) -> None:
    connection = HTTPConnection("127.0.0.1", up.otlp)
    connection.putrequest("POST", "/v1/traces")
    connection.putheader("Content-Type", "application/x-protobuf")
    connection.putheader("Content-Length", "1000")
    connection.endheaders(b"half")
    connection.close()
    assert send(up.otlp, "GET", "/health")[0] == 200
