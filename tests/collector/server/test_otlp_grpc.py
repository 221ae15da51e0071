import gzip
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
from google.rpc import status_pb2
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2_grpc import LogsServiceStub
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2_grpc import MetricsServiceStub
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import TraceServiceStub
from tests.http_requests import health

from ltrain_collector.access import Keys
from ltrain_collector.store import Store
from ltrain_instrument.identity import Identity

TRACES = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"


@pytest.fixture
def channel(up: Any) -> Iterator[grpc.Channel]:
    options = [("grpc.max_send_message_length", -1)]
    with grpc.insecure_channel(f"127.0.0.1:{up.grpc}", options) as opened:
        yield opened


def failure(channel: grpc.Channel, method: str, body: bytes, **options: Any) -> grpc.RpcError:
    """Send bytes, and return the error in the response."""
    with pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary(method)(body, timeout=20, **options)
    return caught.value


def detail(error: grpc.RpcError) -> status_pb2.Status:
    serialized = dict(error.trailing_metadata())["grpc-status-details-bin"]
    return status_pb2.Status.FromString(serialized)


@pytest.mark.parametrize("packing", list(grpc.Compression))
def test_spans_are_readable_once_they_are_answered_for(
    up: Any, channel: grpc.Channel, request_of: Callable[..., bytes], packing: grpc.Compression
) -> None:
    body = request_of((1, 1), (1, 2), ltrain__rollout__id=f"grpc-{packing}", text="x" * 5000)
    request = ExportTraceServiceRequest.FromString(body)
    answer = TraceServiceStub(channel).Export(request, compression=packing)  # type: ignore[no-untyped-call]
    assert answer.ByteSize() == 0
    with Store.open(up.dsn) as store:
        sql = "SELECT SpanId FROM otel.spans WHERE RolloutId = {r:String} ORDER BY SpanId"
        spans = store.query(sql, {"r": f"grpc-{packing}"})["SpanId"].to_list()
    assert spans == [f"{number:016x}" for number in (1, 2)]


def test_what_cannot_be_is_counted_in_the_answer(channel: grpc.Channel) -> None:
    logs = ExportLogsServiceRequest()
    logs.resource_logs.add().scope_logs.add().log_records.add(time_unix_nano=2**63)
    partial = LogsServiceStub(channel).Export(logs).partial_success  # type: ignore[no-untyped-call]
    assert partial.rejected_log_records == 1
    metrics = ExportMetricsServiceRequest()
    metric = metrics.resource_metrics.add().scope_metrics.add().metrics.add()
    metric.gauge.data_points.add(time_unix_nano=2**63)
    partial = MetricsServiceStub(channel).Export(metrics).partial_success  # type: ignore[no-untyped-call]
    assert partial.rejected_data_points == 1
    assert partial.error_message == "time_unix_nano is more than a year ahead"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"\xff\xff", "not an OTLP ExportTraceServiceRequest"),
        (gzip.compress(b"x" * 1000, mtime=0)[:-9], "gzip body is truncated"),
        (gzip.compress(bytes(65 << 20), 1, mtime=0), "larger than the limit of 64 MiB"),
        (zlib.compress(bytes(65 << 20), 1), "larger than the limit of 64 MiB"),
    ],
)
def test_a_bad_message_is_not_tried_again(channel: grpc.Channel, body: bytes, says: str) -> None:
    error = failure(channel, TRACES, body)
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert says in error.details()
    assert says in detail(error).message
    assert not detail(error).details


def test_a_message_that_is_too_long_is_not_tried_again(channel: grpc.Channel) -> None:
    error = failure(channel, TRACES, bytes((64 << 20) + 1))
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "grpc-status-details-bin" not in dict(error.trailing_metadata())


def test_another_service_is_not_here(channel: grpc.Channel) -> None:
    error = failure(channel, TRACES.replace("trace", "profiles"), b"")
    assert error.code() is grpc.StatusCode.UNIMPLEMENTED


def test_a_key_that_is_shown_is_checked(
    up: Any, channel: grpc.Channel, request_of: Callable[..., bytes]
) -> None:
    """The store has no keys, but a key in a request is checked."""
    body = request_of((9, 9), ltrain__rollout__id="grpc-bound")
    good = Keys(up.directory).sign_bound(Identity(rollout="grpc-bound"), 600)
    for key in ("lt_unknown", Keys(up.directory).sign_bound(Identity(rollout="grpc-bound"), -1)):
        error = failure(channel, TRACES, body, metadata=[("authorization", f"Bearer {key}")])
        assert error.code() is grpc.StatusCode.PERMISSION_DENIED
    metadata = [("authorization", f"Bearer {good}")]
    assert channel.unary_unary(TRACES)(body, timeout=20, metadata=metadata) == b""


def test_a_client_that_disconnects_leaves_nothing_in_memory(
    up: Any, channel: grpc.Channel, request_of: Callable[..., bytes]
) -> None:
    for number in range(20):
        call = channel.unary_unary(TRACES).future(request_of((number + 1, 1)))
        call.cancel()
    assert channel.unary_unary(TRACES)(b"") == b""
    assert health(up.otlp)["status"] == "ok"
