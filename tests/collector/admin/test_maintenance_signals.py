"""Pruning and restoring of log records and metrics."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from tests.otlp import insert_otlp
from typer.testing import CliRunner

from ltrain.cli import app
from ltrain_collector.admin.backup import restore
from ltrain_collector.admin.maintenance import PruneFilter, prune, store_status
from ltrain_collector.errors import BadBackup
from ltrain_collector.signals import LOGS, METRICS
from ltrain_collector.store import Store

NOON = 1_790_000_000_000_000_000
DAY = 86_400 * 10**9
OLD = NOON - 9 * DAY
CUT = datetime.fromtimestamp((NOON - 5 * DAY) / 1e9, UTC)


@pytest.fixture
def held(folder: Store, request_of: Callable[..., bytes]) -> Store:
    """Spans and log records of `old`, `long` and `val`; records of no rollout; two points."""
    for number, (rollout, start, mode) in enumerate(
        (
            ("old", OLD, "train"),
            ("long", OLD, "train"),
            ("long", NOON, "train"),
            ("val", NOON, "val"),
        ),
        1,
    ):
        values = {"ltrain__run__id": "demo", "ltrain__mode": mode, "ltrain__rollout__id": rollout}
        insert_otlp(folder, request_of((number, number), start=start, **values))
    logs, metrics = ExportLogsServiceRequest(), ExportMetricsServiceRequest()
    records = logs.resource_logs.add().scope_logs.add().log_records
    for body, rollout, at in (
        ("old", "old", OLD),
        ("old, late", "old", NOON),
        ("long", "long", OLD),
        ("val", "val", OLD),
        ("lone, old", "lone", OLD),
        ("lone2, old", "lone2", OLD),
        ("lone2, new", "lone2", NOON),
        ("none, old", "", OLD),
        ("none, new", "", NOON),
    ):
        record = records.add(time_unix_nano=at)
        record.body.string_value = body
        if rollout:
            for key, value in (("ltrain.rollout.id", rollout), ("ltrain.run.id", "demo")):
                record.attributes.add(key=key).value.string_value = value
    gauge = metrics.resource_metrics.add().scope_metrics.add().metrics.add(name="load").gauge
    for at in (OLD, NOON):
        gauge.data_points.add(time_unix_nano=at, as_double=0.5)
    insert_otlp(folder, logs.SerializeToString(), LOGS)
    insert_otlp(folder, metrics.SerializeToString(), METRICS)
    return folder


def bodies(store: Store) -> set[str]:
    return set(store.query("SELECT Body FROM otel.logs")["Body"].to_list())


EVERY = {"old", "old, late", "long", "val", "lone, old", "lone2, old", "lone2, new"}
EVERY |= {"none, old", "none, new"}


@pytest.mark.parametrize(
    ("choice", "gone", "points"),
    [
        (PruneFilter(before=CUT), {"old", "old, late", "lone, old", "none, old"}, 1),
        (PruneFilter(before=CUT, run="demo"), {"old", "old, late", "lone, old"}, 2),
        (PruneFilter(before=CUT, mode="train"), {"old", "old, late"}, 2),
        (PruneFilter(mode="val"), {"val"}, 2),
        (PruneFilter(run="demo"), EVERY - {"none, old", "none, new"}, 2),
    ],
    ids=["age", "age and run", "age and mode", "mode", "run"],
)
def test_log_records_go_with_their_rollout_and_metrics_by_age(
    held: Store, choice: PruneFilter, gone: set[str], points: int
) -> None:
    counted = prune(held, choice, delete=False)
    assert bodies(held) == EVERY
    assert prune(held, choice, delete=True) == counted
    values = {each.table: (each.rows, each.remaining) for each in counted}
    assert bodies(held) == EVERY - gone
    assert values["otel.otel_logs"] == (len(gone), len(EVERY - gone))
    assert values["otel.otel_metrics_gauge"] == (2 - points, points)
    assert held.query("SELECT count() AS n FROM otel.metrics_gauge")["n"].item() == points
    assert [each.rows for each in prune(held, choice, delete=False)] == [0] * len(counted)


def test_a_backup_restores_every_signal(held: Store, tmp_path: Path) -> None:
    def ltrain(*argv: str, store: str = held.name) -> str:
        done = CliRunner().invoke(app, ["store", *argv, "--store", store])
        assert done.exit_code == 0, done.exception
        return done.stdout

    before: Any = store_status(held)
    ltrain("backup", str(tmp_path / "copy.tar"))
    for table in ("traces", "metrics_gauge"):
        held.command(f"TRUNCATE TABLE otel.otel_{table}")
    with pytest.raises(
        BadBackup, match="holds 9 log records; a backup is restored only into an empty"
    ):
        restore(held, tmp_path / "copy.tar", trusted=True)
    held.command("TRUNCATE TABLE otel.otel_logs")
    values = ltrain("restore", str(tmp_path / "copy.tar"))
    assert "holds 4 spans, 9 log records, 2 data points of" in values
    after: Any = store_status(held)
    for signal in ("traces", "logs", "metrics_gauge"):
        for what in ("rows", "oldest", "newest"):
            assert after[signal][what] == before[signal][what]
