"""The collector stores its own metrics: rounds are written, do not count themselves, and end."""

import asyncio
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.http_requests import ask
from tests.own_metrics import values

from ltrain_collector.errors import QueryFailed
from ltrain_collector.http import RefusalCounts
from ltrain_collector.ingest import Intake
from ltrain_collector.metrics import Health, Monitor, OwnMetrics, SelfMetrics
from ltrain_collector.signals import TRACES
from ltrain_collector.store import EmbeddedBackend, Engine, Store

HEALTH = "SELECT name, toString(labels) AS labels, value FROM otel.collector_health"


def watched(engine: Engine, folder: Path) -> Health:
    metrics = OwnMetrics()
    intake = Intake(engine, metrics.meter)
    return Health(Monitor(metrics, intake, engine, folder, RefusalCounts()))


def found(health: Health) -> dict[tuple[str, ...], float]:
    return values(health.monitor.metrics.samples())


async def until(condition: Callable[[], bool]) -> None:
    ends = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < ends
        await asyncio.sleep(0.02)


def test_rounds_are_rows_and_count_nothing(
    tmp_path: Path, request_of: Callable[..., bytes]
) -> None:
    engine = Engine(tmp_path / "store")
    store = Store(EmbeddedBackend(engine), "mine")
    store.migrate()
    count = "SELECT uniqExact(TimeUnix) AS n FROM otel.metrics_gauge"

    def rounds() -> int:
        return int(store.query(count)["n"].item())

    async def run() -> None:
        health = watched(engine, tmp_path)
        intake = health.monitor.intake
        with intake.budget.buffer() as arrival:
            arrival.add(request_of((1, 1), (1, 2)))
            await intake.ingest(TRACES, arrival)
        diary = SelfMetrics(health, every=0.05)
        diary.start()
        await until(lambda: rounds() >= 3)
        await diary.stop()
        written = rounds()
        counted = found(health)
        assert counted["accepted_total", "metrics"] == 0
        inserts = [value for key, value in counted.items() if key[0] == "inserts_total"]
        assert sum(inserts) == 1
        assert counted["missed_rounds_total",] == 0
        await asyncio.sleep(0.2)
        assert rounds() == written  # it has ended

    try:
        asyncio.run(run())
        latest = {(name, labels): value for name, labels, value in store.query(HEALTH).rows()}
        signal = "{'signal':'traces'}"
        table = "{'table':'otel.otel_traces'}"
        sums = {
            ("accepted_total", signal): 2,
            ("requests_total", signal): 1,
            ("lag_seconds_count", signal): 1,
            ("inserted_rows_total", table): 2,
            ("rows_per_insert_sum", table): 2,
            ("store_rows", table): 2,
            ("waiting_bytes", "{}"): 0,
        }
        warnings = {
            (f"ltrain_collector_{name}", labels): value for (name, labels), value in sums.items()
        }
        assert {key: latest.get(key) for key in warnings} == warnings
        assert ("ltrain_collector_rejected_total", signal) not in latest  # it never counted
        row = store.query(
            "SELECT DISTINCT ServiceName, ResourceAttributes['service.version'] AS version, "
            "AggregationTemporality AS how, IsMonotonic AS up FROM otel.metrics_sum"
        ).to_dicts()
        assert row == [{"ServiceName": "ltrain-collector", "version": "0.1.0", "how": 2, "up": 1}]
    finally:
        engine.close()


def test_names_are_prometheus_own_style(tmp_path: Path) -> None:
    engine = Engine(tmp_path / "store")
    try:
        health = watched(engine, tmp_path)
        SelfMetrics(health)
        request = health.monitor.metrics.otlp_request()
    finally:
        engine.close()
    [scope] = request.resource_metrics[0].scope_metrics
    names = {metric.name for metric in scope.metrics}
    counters = {metric.name for metric in scope.metrics if metric.HasField("sum")}
    assert len(counters) == 10
    assert counters == {name for name in names if name.endswith("_total")}
    assert {name for name in names if not name.startswith("ltrain_collector_")} == set()
    assert {name for name in names if re.search("_(ms|mb|count|sum)$", name)} == set()


def test_a_round_that_the_engine_refuses_is_counted_and_the_next_is_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine = Engine(tmp_path / "store")
    store = Store(EmbeddedBackend(engine), "mine")
    store.migrate()

    async def run() -> None:
        health = watched(engine, tmp_path)
        diary = SelfMetrics(health, every=0.05)
        engine.command("RENAME TABLE otel.otel_metrics_gauge TO otel.away")
        diary.start()
        await until(lambda: found(health)["missed_rounds_total",] >= 2)
        engine.command("RENAME TABLE otel.away TO otel.otel_metrics_gauge")
        await until(lambda: written(store) > 0)
        await diary.stop()

    try:
        asyncio.run(run())
    finally:
        engine.close()
    messages = [one.message for one in caplog.records if "collector's metrics" in one.message]
    assert len(messages) == 1


def written(store: Store) -> int:
    try:
        return store.query("SELECT Value FROM otel.metrics_gauge").height
    except QueryFailed:  # just being renamed
        return 0


@pytest.mark.nightly
def test_a_server_writes_them_and_ends_with_a_full_disk(
    start: Callable[..., Any], request_of: Callable[..., bytes], tmp_path: Path
) -> None:
    small = ("unshare", "--map-root-user", "--mount", "sh", "-c")
    script = ('mount -t tmpfs -o size=64m none "$0" && exec "$@"', str(tmp_path))
    if not shutil.which("unshare") or subprocess.run((*small, *script, "true")).returncode:
        pytest.skip("this machine lets nobody mount a disk of his own")
    up = start(tmp_path / "store", within=(*small, *script))
    inside = Path(f"/proc/{up.pid}/root{tmp_path}")
    room = os.statvfs(inside)
    (inside / "ballast").write_bytes(bytes(room.f_bavail * room.f_frsize))
    ends = time.monotonic() + 60
    while "missed_rounds_total 0.0" in (page := ask(up.otlp, "GET", "/metrics").text):
        assert time.monotonic() < ends, page
        time.sleep(0.2)
    (inside / "ballast").unlink()
    with Store.open(up.dsn) as store:
        while not store.query("SELECT Value FROM otel.metrics_gauge").height:
            assert time.monotonic() < ends
            time.sleep(0.2)
    page = ask(up.otlp, "GET", "/metrics").text
    assert 'insert_failures_total{table="otel.otel_metrics_gauge"} 0.0' in page
    assert up.stop() == 0
