import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.http_requests import ask, post

from ltrain_collector.http import RefusalCounts
from ltrain_collector.ingest import Intake
from ltrain_collector.ingest.commit import RecentRequests
from ltrain_collector.ingest.instruments import IngestInstruments
from ltrain_collector.metrics import Health, Monitor, OwnMetrics
from ltrain_collector.metrics.health import MAX_SNAPSHOTS
from ltrain_collector.store import Engine, program_version

TRACES = {"signal": "traces"}


@pytest.fixture
def health(tmp_path: Path) -> Any:
    metrics, engine = OwnMetrics(), Engine(tmp_path / "store")
    intake = Intake(engine, metrics.meter)
    yield Health(Monitor(metrics, intake, engine, tmp_path, RefusalCounts()))
    engine.close()


def instruments(health: Health) -> IngestInstruments:
    return health.monitor.intake.instruments


def test_only_the_last_minutes_are_reported(health: Health) -> None:
    nothing = {"requests": 0, "rejected": 0, "refused": {}, "failures": 0, "lag": 0.0}
    assert health.report()["recent"] == nothing
    counted = instruments(health)
    counted.requests.add(3, TRACES)
    counted.rejected.add(2, TRACES)
    counted.failures.add(1, {"table": "otel.otel_traces"})
    counted.refused.add(1, {**TRACES, "reason": "malformed"})
    expected = {
        "requests": 3,
        "rejected": 2,
        "refused": {"malformed": 1},
        "failures": 1,
        "lag": 0.0,
    }
    assert health.report()["recent"] == expected
    for _ in range(MAX_SNAPSHOTS - 1):
        health.take_snapshot()
    assert health.report()["recent"] == expected  # five minutes less one round
    health.take_snapshot()
    counted.refused.add(4, {**TRACES, "reason": "engine"})
    assert health.report()["recent"] == {**nothing, "refused": {"engine": 4}}


def test_lag_is_a_quantile(health: Health) -> None:
    counted = instruments(health)
    for _ in range(19):
        counted.lag.record(0.2, TRACES)
    counted.lag.record(100, {"signal": "logs"})
    assert health.report()["recent"]["lag"] == 0.25
    counted.lag.record(100, TRACES)
    assert health.report()["recent"]["lag"] == 30.0


def test_a_request_that_was_stored_before_is_known_for_a_while() -> None:
    repeated = RecentRequests(2)
    assert [repeated.add(digest) for digest in (1, 2, 1, 3, 2, 1)] == [
        *(False, False, True),
        *(False, False, False),
    ]


@pytest.mark.parametrize("environment", [(), ("env", "OTEL_SDK_DISABLED=true")], ids=str)
def test_health_reports_the_counters(
    start: Callable[..., Any],
    request_of: Callable[..., bytes],
    tmp_path: Path,
    environment: tuple[str, ...],
) -> None:
    up = start(tmp_path / "store", within=environment)
    sent = [
        ("/v1/traces", request_of((1, 1), (1, 2))),
        ("/v1/traces", request_of((1, 3), start=0)),
        ("/v1/logs", b"\xff"),
        ("/v1/metrics", b""),
    ]
    for path, body in sent:
        post(up.otlp, body, path)
    health = json.loads(ask(up.otlp, "GET", "/health").text)
    disk = health.pop("disk")
    assert 0 < disk["free"] <= disk["size"]
    assert health["recent"].pop("lag") > 0
    nothing = {"requests": 0, "accepted": 0, "rejected": 0, "refused": {}}
    assert health == {
        "status": "ok",
        "version": program_version(),
        "requests": 3,
        "traces": {"requests": 2, "accepted": 2, "rejected": 1, "refused": {}},
        "logs": {**nothing, "refused": {"malformed": 1}},
        "metrics": {**nothing, "requests": 1},
        "inserts": 1,
        "failures": 0,
        "waiting_bytes": 0,
        "recent": {"requests": 3, "rejected": 1, "refused": {"malformed": 1}, "failures": 0},
        "forward": {},
        "returned": 0,
    }
