"""A bound key, or another sender from outside, neither fills the store nor blocks it."""

import gzip
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from tests.http_requests import Answer, health, post
from tests.small_disk import small_disk
from tests.up import Up, start_up

from ltrain_collector.access import Grant, Role, sign_bound, sign_service, store_secret
from ltrain_collector.errors import OverBudget, OverMinute, TooLarge
from ltrain_collector.ingest.budgets import Budget, Budgets, IngestLimits
from ltrain_collector.store import Store
from ltrain_instrument.delivery.otlp_client import Authorization, Sender
from ltrain_instrument.errors import BadSetting
from ltrain_instrument.identity import Identity
from ltrain_instrument.settings import BOUND_LIMITS, INGEST_LIMITS

MIB = 1 << 20
TRACES = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
LIMITS = "minute=3,records=1000,total=4,request=2,attributes=20,events=5,links=5"

RequestOf = Callable[..., bytes]


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    environ = {**os.environ, "LTRAIN_BOUND_LIMITS": LIMITS}
    running = start_up(tmp_path_factory.mktemp("up") / "store", environ=environ)
    yield running
    running.stop()


def bound(up: Up, **identity: Any) -> dict[str, str]:
    key = sign_bound(store_secret(up.directory), Identity(**identity), 3600)
    return {"Authorization": f"Bearer {key}"}


def service(up: Up) -> dict[str, str]:
    return {"Authorization": f"Bearer {sign_service(store_secret(up.directory), 3600)}"}


def message(answer: Answer) -> str:
    return str(status_pb2.Status.FromString(answer.body).message)


def wide(request_of: RequestOf, number: int) -> bytes:
    """Return a span of 1.2 MiB; two of them fit into a minute."""
    return request_of((number, 1), text=os.urandom(600 << 10).hex())


def test_a_minute_of_bytes_is_refused_with_the_seconds_to_wait(
    up: Up, request_of: RequestOf
) -> None:
    key = bound(up, run="r", rollout="minute", attempt=1)
    answers = [post(up.otlp, wide(request_of, n), **key) for n in range(1, 5)]
    assert [answer.status for answer in answers] == [200, 200, 429, 429]
    seconds = int(answers[2].headers["Retry-After"])
    assert 0 < seconds <= 60
    status = status_pb2.Status.FromString(answers[2].body)
    assert (status.code, status.details[0].Is(error_details_pb2.RetryInfo.DESCRIPTOR)) == (8, True)
    assert f"Send again in {seconds} s" in status.message
    assert "LTRAIN_BOUND_LIMITS=minute=6" in status.message
    assert health(up.otlp)["traces"]["refused"]["minute"] == 2


def test_a_run_shows_what_was_refused(up: Up, request_of: RequestOf) -> None:
    key = bound(up, run="shown", rollout="refused", attempt=2)
    for n in range(50, 55):
        post(up.otlp, wide(request_of, n), **key)
    sql = (
        "SELECT RunId, RolloutId, Attempt, Sender, Body FROM otel.logs "
        "WHERE EventName = 'ltrain.refused' AND RunId = 'shown'"
    )
    with Store.open(up.owned) as store:
        until = time.monotonic() + 30
        while (found := store.query(sql)).is_empty():
            assert time.monotonic() < until
        [(*identity, body)] = found.rows()  # one a minute
    assert identity == ["shown", "refused", "2", "local"]
    assert body.startswith("1 request was refused: This key has sent the 3 MiB that it may send")


def test_others_are_not_affected(up: Up, request_of: RequestOf) -> None:
    key = bound(up, run="r", rollout="greedy", attempt=1)
    statuses = [post(up.otlp, wide(request_of, n), **key).status for n in range(10, 16)]
    assert statuses.count(200) == 2
    another = bound(up, run="r", rollout="modest", attempt=1)
    for headers in (service(up), {"Authorization": f"Bearer {up.key}"}, {}, another):
        assert post(up.otlp, wide(request_of, 20), **headers).status == 200
    for n in range(30, 40):
        assert post(up.otlp, wide(request_of, n), **service(up)).status == 200


def test_all_that_a_key_may_store(up: Up, request_of: RequestOf) -> None:
    budget = Budget(IngestLimits("LTRAIN_BOUND_LIMITS", total=4))
    for _ in range(4):
        budget.charge(MIB, 1)
    with pytest.raises(OverBudget, match=r"stored 4 of 4 MiB.*LTRAIN_BOUND_LIMITS=total=8"):
        budget.require(1)
    assert (OverBudget.status, OverBudget.retryable) == (413, False)


def test_a_minute_fills_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    budget = Budget(IngestLimits("S", minute=60, records=600))
    budget.charge(60 * MIB, 600)
    with pytest.raises(OverMinute, match="Send again in 5 s") as refused:
        budget.charge(5 * MIB, 1)
    assert refused.value.retry_after == 5
    now += 5
    budget.charge(5 * MIB, 50)
    with pytest.raises(OverMinute, match="has sent the 60 MiB"):
        budget.charge(MIB, 1)
    now += 600
    budget.charge(60 * MIB, 1)
    with pytest.raises(OverBudget, match="One request has more than the 60 MiB"):
        budget.charge(61 * MIB, 1)


def test_a_run_whose_attempts_share_a_key_has_no_budget_of_a_minute(tmp_path: Path) -> None:
    limits = IngestLimits("S", minute=1, records=10, request=2)
    budgets = Budgets(tmp_path, limits, IngestLimits())
    budget = budgets.of(Grant(Role.INGEST, "r", {"ltrain.run.id": "r"}))
    assert budget is not None
    for _ in range(20):
        budget.charge(2 * MIB, 100)
    with pytest.raises(TooLarge):
        budget.charge(3 * MIB, 1)
    attempt = budgets.of(Grant(Role.INGEST, "a.1", {"ltrain.rollout.id": "a"}))
    assert attempt is not None
    attempt.charge(MIB, 10)
    with pytest.raises(OverMinute):
        attempt.charge(1, 1)


def test_a_total_belongs_to_the_key_of_a_rollout(tmp_path: Path) -> None:
    budgets = Budgets(tmp_path, IngestLimits(total=1), IngestLimits())
    run = Grant(Role.INGEST, "r", {"ltrain.run.id": "r"})
    rollout = Grant(Role.INGEST, "a.1", {"ltrain.run.id": "r", "ltrain.rollout.id": "a"})
    for grant in (run, None, Grant(Role.INGEST, "made")):
        budget = budgets.of(grant)
        assert budget is not None and budget is budgets.of(grant)
        budget.charge(2 * MIB, 1)
        budget.charge(2 * MIB, 1)
    of_rollout = budgets.of(rollout)
    assert of_rollout is not None
    with pytest.raises(OverBudget):
        of_rollout.charge(2 * MIB, 1)
    assert budgets.of(Grant(Role.SERVICE, "service")) is budgets.of(Grant(Role.ADMIN)) is None


def test_records_are_counted(up: Up, request_of: RequestOf) -> None:
    key = bound(up, run="r", rollout="records", attempt=1)
    many = request_of(*((number, 1) for number in range(1, 601)))
    assert [post(up.otlp, many, **key).status for _ in range(2)] == [200, 429]
    logs = ExportLogsServiceRequest()
    scope = logs.resource_logs.add().scope_logs.add()
    for number in range(1, 501):
        scope.log_records.add(time_unix_nano=1_790_000_000_000_000_000 + number)
    answer = post(up.otlp, logs.SerializeToString(), "/v1/logs", **key)
    assert answer.status == 429 and "sent the 1000 records" in message(answer)
    too_many = request_of(*((number, 1) for number in range(1, 1102)))
    answer = post(up.otlp, too_many, **bound(up, run="r", rollout="more", attempt=1))
    assert answer.status == 413 and "LTRAIN_BOUND_LIMITS=records=2000" in message(answer)


@pytest.mark.parametrize("packed", [False, True])
def test_a_request_is_not_larger_than_its_key_may_send(
    up: Up, request_of: RequestOf, packed: bool
) -> None:
    key = bound(up, run="r", rollout="large", attempt=1)
    body = request_of((1, 1), text="x" * 3 * MIB)
    if packed:
        body, key = gzip.compress(body), {**key, "Content-Encoding": "gzip"}
    answer = post(up.otlp, body, **key)
    assert answer.status == 413 and "larger than the limit of 2 MiB" in message(answer)
    with grpc.insecure_channel(f"127.0.0.1:{up.grpc}") as channel:
        metadata = [("authorization", key["Authorization"])]
        compression = grpc.Compression.Gzip if packed else grpc.Compression.NoCompression
        with pytest.raises(grpc.RpcError) as caught:
            plain = gzip.decompress(body) if packed else body
            export = channel.unary_unary(TRACES)
            export(plain, timeout=20, metadata=metadata, compression=compression)
    assert "larger than the limit of 2 MiB" in caught.value.details()


def test_over_grpc_the_code_is_resource_exhausted(up: Up, request_of: RequestOf) -> None:
    metadata = [("authorization", bound(up, run="r", rollout="grpc", attempt=1)["Authorization"])]
    with grpc.insecure_channel(f"127.0.0.1:{up.grpc}") as channel:
        export = channel.unary_unary(TRACES)
        for number in (1, 2):
            export(wide(request_of, number), timeout=20, metadata=metadata)
        with pytest.raises(grpc.RpcError) as caught:
            export(wide(request_of, 3), timeout=20, metadata=metadata)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    serialized = dict(caught.value.trailing_metadata())["grpc-status-details-bin"]
    assert status_pb2.Status.FromString(serialized).details


def test_a_record_that_is_too_large_is_rejected_and_the_others_are_stored(
    up: Up, request_of: RequestOf
) -> None:
    key = bound(up, run="r", rollout="shape", attempt=1)
    body = request_of((7, 1)) + request_of((7, 2), **{f"k{n}": "v" for n in range(30)})
    answer = post(up.otlp, body, **key)
    partial = ExportTraceServiceResponse.FromString(answer.body).partial_success
    assert (answer.status, partial.rejected_spans) == (200, 1)
    assert partial.error_message == "a record has 30 attributes, and its sender may send 20"


def test_ltrains_sender_keeps_what_fits_later_and_says_why(up: Up, request_of: RequestOf) -> None:
    key = bound(up, run="r", rollout="sdk", attempt=1)
    authorization = Authorization(lambda: key["Authorization"])
    sender = Sender(lambda: f"{up.endpoint}/v1/traces", timeout=20, authorization=authorization)
    results = [sender.post(wide(request_of, number)) for number in (1, 2, 3)]
    sender.close()
    assert [result.status for result in results] == ["accepted", "accepted", "retry"]
    why = "answered 429 This key has sent the 3 MiB that it may send in a minute."
    assert why in results[2].reason


def test_bad_limits_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    for setting in (BOUND_LIMITS, INGEST_LIMITS):
        monkeypatch.setenv(setting.name, "minutes=3")
        with pytest.raises(BadSetting, match=f"^{setting.name}: 'minutes=3' .* of minute, records"):
            setting.read()


def test_one_bound_key_leaves_memory_to_others(up: Up) -> None:
    from ltrain_collector.errors import Overloaded
    from ltrain_collector.http import MemoryBudget

    memory = MemoryBudget(8 * MIB)
    with memory.buffer("mine") as mine, memory.buffer("mine") as second, memory.buffer() as other:
        mine.add(bytes(MIB))
        second.add(bytes(MIB))
        with pytest.raises(Overloaded, match="Requests of this key in memory take 2 MiB of 2 MiB"):
            second.add(b"x")
        other.add(bytes(5 * MIB))
    assert memory.in_use == 0
    with memory.buffer("mine") as mine:
        mine.add(bytes(2 * MIB))


def test_the_last_part_of_the_disk_is_for_ltrains_own_processes(
    tmp_path: Path, request_of: RequestOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LTRAIN_STORE_SECRET", "s" * 40)  # its file is on the small disk
    up = start_up(tmp_path / "store", within=small_disk(tmp_path))
    try:
        inside = Path(f"/proc/{up.pid}/root{tmp_path}")
        room = os.statvfs(inside)
        reserve = room.f_blocks * room.f_frsize * 5 // 100
        ballast = inside / "ballast"
        ballast.write_bytes(bytes(room.f_bavail * room.f_frsize - reserve + 65536))
        senders: list[dict[str, Any]] = [{}, bound(up, run="r", rollout="a", attempt=1)]
        for headers in senders:
            answer = post(up.otlp, request_of((1, 1)), **headers)
            assert (answer.status, answer.headers["Retry-After"]) == (503, "5")
            assert "are reserved for ltrain's own processes" in message(answer)
        assert post(up.otlp, request_of((2, 1)), **service(up)).status == 200
        report = health(up.otlp)
        assert (report["status"], report["traces"]["refused"]) == ("ok", {"reserve": 2})
        assert report["disk"]["free"] < report["disk"]["reserve"] == reserve
        ballast.unlink()
        assert post(up.otlp, request_of((1, 1)), **senders[1]).status == 200
        with Store.open(up.owned) as store:
            assert store.query("SELECT count() AS n FROM otel.spans")["n"].item() == 2
    finally:
        up.stop()
