"""Collectors that forward to each other: over HTTP and gRPC, with keys."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.collector.server.test_kill import spans
from tests.http_requests import health, post

from ltrain_collector.access import Keys, Role
from ltrain_collector.store import Store
from ltrain_train.processes import free_port

Start = Callable[..., Any]
STORED = "SELECT count() AS n, uniqExact(SpanId) AS ids FROM otel.otel_traces"


def wait(is_reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 90
    while not is_reached():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def count(dsn: str) -> tuple[int, int]:
    with Store.open(dsn) as store:
        return store.query(STORED).row(0)


def test_a_ring_stores_each_record_once(start: Start, tmp_path: Path) -> None:
    ports = [free_port() for _ in range(4)]
    one = start(
        tmp_path / "one" / "store", ports[0], 0, "--forward", f"two=grpc://127.0.0.1:{ports[3]}"
    )
    two = start(
        tmp_path / "two" / "store",
        *(ports[2], 0, "--forward", f"one=http://127.0.0.1:{ports[0]}"),
        grpc=ports[3],
    )
    sent = spans(1)
    records = len(sent.resource_spans[0].scope_spans[0].spans)
    assert post(one.otlp, sent.SerializeToString()).status == 200
    wait(lambda: health(one.otlp)["returned"] == 1)
    time.sleep(1)  # a loop would turn many times
    states = [health(each.otlp) for each in (one, two)]
    assert [(state["requests"], state["returned"]) for state in states] == [(2, 1), (1, 0)]
    assert [count(each.dsn) for each in (one, two)] == [(records, records)] * 2
    with Store.open(two.dsn) as store:
        found = store.query("SELECT any(ResourceAttributes) AS of FROM otel.otel_traces")["of"][0]
    assert "ltrain.forwarded_by" in str(found)


def test_a_target_over_grpc_gets_its_key(start: Start, tmp_path: Path, monkeypatch: Any) -> None:
    target = start(tmp_path / "target" / "store")
    key, _ = Keys(target.directory).make_key(Role.INGEST)
    monkeypatch.setenv("LTRAIN_FORWARD_COPY_HEADERS", f"Authorization=Bearer%20{key}")
    forward = f"copy=grpc://127.0.0.1:{target.grpc}"
    up = start(tmp_path / "own" / "store", 0, 0, "--forward", forward)
    assert post(up.otlp, spans(1).SerializeToString()).status == 200
    wait(lambda: health(target.otlp)["requests"] == 1)
    wait(lambda: health(up.otlp)["forward"]["copy"]["waiting_bytes"] == 0)
