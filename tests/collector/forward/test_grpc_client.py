"""The tee with a target over gRPC that is away, busy, or refuses a request."""

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from tests.collector.forward.test_tee import span_names, spans, wait

from ltrain_collector.forward import Target, Tee
from ltrain_collector.metrics import OwnMetrics
from ltrain_collector.signals import TRACES
from ltrain_train.processes import free_port

EXPORT = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"


@dataclass
class GrpcTarget(grpc.GenericRpcHandler):  # type: ignore[misc]
    """An OTLP service that answers with a status, and refuses the spans with some names."""

    port: int = field(default_factory=free_port)
    code: grpc.StatusCode = grpc.StatusCode.OK
    retry_after: int | None = None
    refused: set[str] = field(default_factory=set)
    names: list[str] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)

    def start(self) -> None:
        self.server = grpc.server(ThreadPoolExecutor(1))
        self.server.add_generic_rpc_handlers((self,))
        assert self.server.add_insecure_port(f"127.0.0.1:{self.port}") == self.port
        self.server.start()

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        assert details.method == EXPORT
        return grpc.unary_unary_rpc_method_handler(self._export)

    def _export(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        self.times.append(time.monotonic())
        self.metadata = dict(context.invocation_metadata())
        names = span_names(request)
        if self.refused & {*names}:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "Rejected by the test.")
        if self.code is not grpc.StatusCode.OK:
            status = Status(code=self.code.value[0])
            if self.retry_after is not None:
                retry = RetryInfo()
                retry.retry_delay.seconds = self.retry_after
                status.details.add().Pack(retry)
            details = ("grpc-status-details-bin", status.SerializeToString())
            context.set_trailing_metadata((details,))
            context.abort(self.code, "Rejected by the test.")
        self.names += names
        return b""


@pytest.fixture
def target() -> Iterator[GrpcTarget]:
    target = GrpcTarget()
    target.start()
    yield target
    target.server.stop(None).wait()


@pytest.fixture
def tee_of(tmp_path: Path, target: GrpcTarget) -> Iterator[Callable[[], Tee]]:
    opened = []

    def make() -> Tee:
        targets = [Target("near", f"grpc://127.0.0.1:{target.port}")]
        opened.append(Tee(tmp_path / "store.forward", targets, OwnMetrics().meter))
        return opened[-1]

    yield make
    for tee in opened:
        tee.close()


Open = Callable[[], Tee]


def append(tee: Tee, *requests: bytes) -> None:
    for request in requests:
        asyncio.run(tee.append(TRACES, request))


@pytest.mark.parametrize(
    "code", [grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE], ids=str
)
def test_a_busy_target_is_asked_again_after_its_seconds(
    target: GrpcTarget, tee_of: Open, monkeypatch: pytest.MonkeyPatch, code: grpc.StatusCode
) -> None:
    monkeypatch.setenv("LTRAIN_FORWARD_NEAR_HEADERS", "Authorization=Basic%20cGs6c2s=")
    target.code, target.retry_after = code, 2
    tee = tee_of()
    append(tee, spans("one"))
    wait(lambda: len(target.times) == 1)
    target.code = grpc.StatusCode.OK
    wait(lambda: target.names == ["one"])
    assert target.times[1] - target.times[0] >= 2
    assert target.metadata["authorization"] == "Basic cGs6c2s="
    assert tee.report()["near"]["missing"] == {}


def test_a_refused_request_is_kept_apart(target: GrpcTarget, tee_of: Open, tmp_path: Path) -> None:
    target.refused = {"bad"}
    tee = tee_of()
    append(tee, spans("one"), spans("bad"), spans("two"))
    wait(lambda: sorted(target.names) == ["one", "two"])
    wait(lambda: tee.report()["near"]["missing"] == {"refused": 1})
    [kept] = (tmp_path / "store.forward/near/traces/refused").iterdir()
    assert b"bad" in kept.read_bytes()


def test_a_message_that_is_too_large_is_divided(target: GrpcTarget, tee_of: Open) -> None:
    """A server refuses more than 4 MiB with RESOURCE_EXHAUSTED, and names no time."""
    tee = tee_of()
    append(tee, *(spans(str(number), 3 << 20) for number in range(3)))
    wait(lambda: sorted(target.names) == ["0", "1", "2"])
    assert tee.report()["near"]["missing"] == {}


def test_an_outage_and_a_wrong_key_lose_nothing(
    target: GrpcTarget, tee_of: Open, caplog: pytest.LogCaptureFixture
) -> None:
    target.server.stop(None).wait()
    tee = tee_of()
    append(tee, spans("one"))
    wait(lambda: tee.report()["near"]["away"])
    target.code = grpc.StatusCode.UNAUTHENTICATED
    target.start()
    wait(lambda: bool(target.times))
    target.code = grpc.StatusCode.OK
    wait(lambda: target.names == ["one"])
    wait(lambda: "'near' of --forward answers again" in caplog.text)


def test_no_message_has_a_header(
    target: GrpcTarget,
    tee_of: Open,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("DEBUG")
    monkeypatch.setenv("LTRAIN_FORWARD_NEAR_HEADERS", "Authorization=sk-123%0Ax")
    tee = tee_of()
    append(tee, spans("one"))
    wait(lambda: tee.report()["near"]["away"])
    assert "sk-123" not in caplog.text
    wait(lambda: "its headers cannot be used as metadata" in caplog.text)
    assert tee.report()["near"]["missing"] == {}
