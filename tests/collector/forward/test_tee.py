"""The tee with targets that are away, busy, or refuse a request."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (
    ExportLogsServiceRequest,
    ExportLogsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from tests.instrument.conftest import Server

from ltrain_collector.forward import Target, Tee
from ltrain_collector.metrics import OwnMetrics
from ltrain_collector.signals import LOGS, TRACES

NOON = 1_790_000_000_000_000_000


@dataclass
class OtlpTarget(Server):
    """An OTLP endpoint that refuses the spans with some names."""

    status: int = 200
    refused: set[str] = field(default_factory=set)
    times: list[float] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    """The spans of accepted requests."""
    logs: int = 0

    def respond(self, path: str, body: bytes) -> tuple[int, str, bytes]:
        self.times.append(time.monotonic())
        status, answer = self.status, b""
        if path == "/otel/v1/logs" and status == 200:
            self.logs += len(ExportLogsServiceRequest.FromString(body).resource_logs)
            response = ExportLogsServiceResponse()
            response.partial_success.rejected_log_records = 2
            response.partial_success.error_message = "too old"
            answer = response.SerializeToString()
        elif path == "/otel/v1/traces":
            names = span_names(body)
            status = 400 if self.refused & {*names} else status
            self.names += names if status == 200 else []
        if status != 200:
            answer = Status(message="Rejected by the test.").SerializeToString()
        return status, "application/x-protobuf", answer


def span_names(body: bytes) -> list[str]:
    request = ExportTraceServiceRequest.FromString(body)
    return [s.name for r in request.resource_spans for c in r.scope_spans for s in c.spans]


def spans(name: str, size: int = 0) -> bytes:
    request = ExportTraceServiceRequest()
    span = request.resource_spans.add().scope_spans.add().spans.add(name=name)
    span.trace_id, span.span_id, span.start_time_unix_nano = b"\1" * 16, b"\2" * 8, NOON
    span.attributes.add(key="input").value.string_value = "x" * size
    return bytes(request.SerializeToString())


@pytest.fixture
def target() -> Iterator[OtlpTarget]:
    server = OtlpTarget()
    server.start()
    yield server
    server.stop()


Open = Callable[..., Tee]


@pytest.fixture
def tee_of(tmp_path: Path, target: OtlpTarget) -> Iterator[Open]:
    """Open tees to the target, which are closed at the end of the test."""
    opened = []

    def make(name: str = "langfuse", metrics: OwnMetrics | None = None) -> Tee:
        meter = (metrics or OwnMetrics()).meter
        targets = [Target(name, f"{target.url}/otel")]
        opened.append(Tee(tmp_path / "store.forward", targets, meter))
        return opened[-1]

    yield make
    for tee in opened:
        tee.close()


def append(tee: Tee, *requests: bytes) -> None:
    for request in requests:
        asyncio.run(tee.append(TRACES, request))


def wait(is_reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not is_reached() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert is_reached()


def test_requests_of_each_signal_arrive_with_the_headers_of_the_environment(
    target: OtlpTarget, tee_of: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LTRAIN_FORWARD_LANGFUSE_HEADERS", "Authorization=Basic%20cGs6c2s=")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "Authorization=own,x-own=1")
    tee = tee_of()
    append(tee, spans("chat"))
    log = ExportLogsServiceRequest()
    log.resource_logs.add().scope_logs.add().log_records.add(time_unix_nano=NOON)
    asyncio.run(tee.append(LOGS, log.SerializeToString()))
    wait(lambda: target.names == ["chat"] and target.logs == 1)
    assert sorted(path for path, _, _ in target.requests) == ["/otel/v1/logs", "/otel/v1/traces"]
    for _, headers, _ in target.requests:
        assert headers["authorization"] == "Basic cGs6c2s="
        assert headers["content-type"] == "application/x-protobuf"
        assert "x-own" not in headers
    wait(lambda: tee.report()["langfuse"]["rejected"] == 2)  # partial_success of the logs
    assert tee.report()["langfuse"]["missing"] == {}


def test_what_waits_is_sent_by_the_next_tee(
    target: OtlpTarget, tee_of: Open, caplog: pytest.LogCaptureFixture
) -> None:
    target.stop()
    tee = tee_of()
    append(tee, spans("one"), spans("two"))
    wait(lambda: tee.report()["langfuse"]["away"])
    tee.close()
    assert "spans wait for the target 'langfuse' of --forward in " in caplog.text
    assert tee.report()["langfuse"]["waiting_bytes"] > 0
    tee_of("other")
    assert "for the target 'langfuse', which no --forward names" in caplog.text
    target.start()
    tee = tee_of()
    wait(lambda: sorted(target.names) == ["one", "two"])
    wait(lambda: tee.report()["langfuse"]["waiting_bytes"] == 0)


def test_a_busy_target_is_asked_again_after_its_seconds(target: OtlpTarget, tee_of: Open) -> None:
    target.status, target.retry_after = 429, "2"
    tee = tee_of()
    append(tee, spans("one"))
    wait(lambda: len(target.times) == 1)
    target.status = 200
    wait(lambda: target.names == ["one"])
    assert target.times[1] - target.times[0] >= 2
    assert tee.report()["langfuse"]["missing"] == {}


def test_a_wrong_key_loses_nothing(
    target: OtlpTarget, tee_of: Open, caplog: pytest.LogCaptureFixture
) -> None:
    target.status = 401
    tee = tee_of()
    append(tee, spans("one"))
    wait(lambda: tee.report()["langfuse"]["away"])
    wait(lambda: "Set LTRAIN_FORWARD_LANGFUSE_HEADERS to the headers" in caplog.text)
    target.status = 200
    wait(lambda: target.names == ["one"])
    wait(lambda: "'langfuse' of --forward answers again" in caplog.text)


def test_a_refused_request_is_kept_apart_and_counted(
    target: OtlpTarget, tee_of: Open, tmp_path: Path
) -> None:
    target.refused = {"bad"}
    metrics = OwnMetrics()
    tee = tee_of(metrics=metrics)
    append(tee, spans("one"), spans("bad"), spans("two"))
    wait(lambda: sorted(target.names) == ["one", "two"])
    wait(lambda: tee.report()["langfuse"]["missing"] == {"refused": 1})
    [kept] = (tmp_path / "store.forward/langfuse/traces/refused").iterdir()
    assert b"bad" in kept.read_bytes()
    labels = {"target": "langfuse", "signal": "traces", "reason": "refused"}
    counted = {
        (one.name, one.value) for one in metrics.samples() if one.labels.items() >= labels.items()
    }
    assert counted == {("ltrain_collector_forward_missing_total", 1.0)}


def test_a_full_queue_is_counted_and_logged(
    target: OtlpTarget,
    tee_of: Open,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("LTRAIN_FORWARD_LIMIT", "1")
    target.stop()
    tee = tee_of()
    append(tee, *(spans(str(number), 400_000) for number in range(4)))
    assert tee.report()["langfuse"]["missing"] == {"full": 2}
    [warning] = [r.message for r in caplog.records if "misses" in r.message]
    assert "'langfuse' of --forward misses 1 request of traces so far" in warning
    assert "the queue holds the MiB that LTRAIN_FORWARD_LIMIT allows" in warning
    target.start()
    wait(lambda: sorted(target.names) == ["0", "1"])


def test_no_message_has_a_header(
    target: OtlpTarget,
    tee_of: Open,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("LTRAIN_FORWARD_LANGFUSE_HEADERS", "Authorization=sk-123\nx")
    tee = tee_of()
    append(tee, spans("one"))
    wait(lambda: tee.report()["langfuse"]["away"])
    assert "sk-123" not in caplog.text
    assert "its headers cannot be used" in caplog.text
