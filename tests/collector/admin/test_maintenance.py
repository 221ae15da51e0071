"""Status, pruning and backups of a store."""

import json
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from polars.testing import assert_frame_equal
from tests.otlp import insert_otlp
from typer.testing import CliRunner

from ltrain.cli import app
from ltrain_collector import schema
from ltrain_collector.admin.backup import backup, restore
from ltrain_collector.admin.maintenance import PruneFilter, days_ago, prune, store_status
from ltrain_collector.errors import BadBackup, BadPrune
from ltrain_collector.store import Store

NOON = 1_790_000_000_000_000_000
DAY = 86_400 * 10**9
ROWS = "SELECT * FROM otel.spans ORDER BY TraceId, SpanId"


@pytest.fixture
def held(folder: Store, request_of: Callable[..., bytes]) -> Store:
    """A store with rollouts `old`, `long` (still running) and `new`, and a span without rollout."""
    base = {"ltrain__run__id": "demo", "ltrain__mode": "train"}
    for trace, rollout, start, mode in (
        (1, "old", NOON - 9 * DAY, "train"),
        (2, "long", NOON - 9 * DAY, "train"),
        (2, "long", NOON, "train"),
        (3, "new", NOON, "val"),
    ):
        attributes = base | {"ltrain__mode": mode, "ltrain__rollout__id": rollout}
        insert_otlp(folder, request_of((trace, start % 97), start=start, **attributes))
    insert_otlp(folder, request_of((9, 1), start=NOON - 9 * DAY))
    return folder


def left(store: Store) -> list[tuple[str, int]]:
    sql = "SELECT RolloutId, toInt64(count()) AS n FROM otel.spans GROUP BY RolloutId ORDER BY 1"
    return store.query(sql).rows()


def cut() -> PruneFilter:
    return PruneFilter(before=days_ago(0).fromtimestamp((NOON - 5 * DAY) / 1e9, days_ago(0).tzinfo))


def test_the_status_of_a_store(held: Store, request_of: Callable[..., bytes]) -> None:
    held.command("SYSTEM STOP MERGES otel.otel_traces")
    insert_otlp(held, request_of((9, 1), start=NOON - 9 * DAY))
    report: Any = store_status(held)
    assert report["version"] == len(schema.steps())
    assert report["runs"] == [
        {"run": "", "rollouts": 0, "spans": 1, "newest": "2026-09-12 14:13:20+00:00"},
        {"run": "demo", "rollouts": 3, "spans": 4, "newest": "2026-09-21 14:13:20+00:00"},
    ]
    traces = report["traces"]
    assert (traces["rows"], traces["copies_waiting_for_a_merge"]) == (5, 1)
    assert (traces["oldest"], traces["newest"]) == tuple(run["newest"] for run in report["runs"])
    assert traces["parts"] > 0 < traces["bytes"]
    done = CliRunner().invoke(app, ["store", "status", "--json", "--store", held.name])
    assert json.loads(done.stdout) == report
    lines = CliRunner().invoke(app, ["store", "status", "--store", held.name]).stdout.splitlines()
    assert "  copies waiting for a merge: 1" in lines


def test_pruning_removes_whole_rollouts(held: Store) -> None:
    before = left(held)
    result, *_ = prune(held, cut(), delete=False)
    assert (result.rows, result.remaining) == (2, 3)
    assert left(held) == before == [("", 1), ("long", 2), ("new", 1), ("old", 1)]
    list(prune(held, cut(), delete=True))
    assert left(held) == [("long", 2), ("new", 1)]
    traces = held.query("SELECT RolloutId FROM otel.trace_executions ORDER BY 1")["RolloutId"]
    assert traces.to_list() == ["long", "new"]


def test_pruning_leaves_what_is_kept(held: Store) -> None:
    [trace] = held.query("SELECT TraceId FROM otel.spans WHERE RolloutId = ''")["TraceId"]
    kept = replace(cut(), kept=("old", trace, "it's not", "long" * 5000))
    result, *_ = prune(held, kept, delete=True)
    assert result.rows == 0 and len(left(held)) == 4
    prune(held, replace(kept, kept=(trace,)), delete=True)
    assert left(held) == [("", 1), ("long", 2), ("new", 1)]


def test_pruning_removes_rows_that_meet_all_conditions(held: Store) -> None:
    list(prune(held, PruneFilter(run="demo", mode="val"), delete=True))
    assert left(held) == [("", 1), ("long", 2), ("old", 1)]
    list(prune(held, PruneFilter(run="it's not"), delete=True))
    assert len(left(held)) == 3
    with pytest.raises(BadPrune, match="Set --older-than DAYS, --run or --mode"):
        list(prune(held, PruneFilter(), delete=True))


def test_the_command_only_counts_without_yes(held: Store) -> None:
    def ltrain(*argv: str) -> str:
        done = CliRunner().invoke(app, ["store", "prune", "--store", held.name, *argv])
        assert done.exit_code == 0
        return done.output

    result = ltrain("--mode", "val")
    assert "otel.otel_traces: 1 row would be removed" in result
    assert "Nothing was removed; add --yes to remove these rows." in result
    assert len(left(held)) == 4
    assert "1 row was removed" in ltrain("--mode", "val", "--yes")
    assert len(left(held)) == 3


@pytest.mark.parametrize("name", ["copy", "copy.tar"])
def test_a_backup_restores_the_same_rows(held: Store, tmp_path: Path, name: str) -> None:
    rows, shape = held.query(ROWS), "SELECT name, engine FROM system.tables WHERE database = 'otel'"
    tables = held.query(f"{shape} ORDER BY name")
    assert backup(held, tmp_path / name) > 10
    held.command("TRUNCATE TABLE otel.otel_traces")
    assert restore(held, tmp_path / name, trusted=True) == 5
    assert_frame_equal(held.query(ROWS), rows)
    assert_frame_equal(held.query(f"{shape} ORDER BY name"), tables)
    with pytest.raises(BadBackup, match="holds 5 spans; a backup is restored only into an empty"):
        restore(held, tmp_path / name)
    with pytest.raises(BadBackup, match="already exists"):
        backup(held, tmp_path / name)


def test_a_running_store_is_backed_up_and_restored(
    start: Callable[..., Any], tmp_path: Path, request_of: Callable[..., bytes]
) -> None:
    one, other = start(tmp_path / "one"), start(tmp_path / "other")
    with Store.open(one.owned) as store, Store.open(other.owned) as empty:
        insert_otlp(store, request_of((1, 1), (1, 2), ltrain__rollout__id="r"))
        backup(store, tmp_path / "copy.tar")
        assert restore(empty, tmp_path / "copy.tar", trusted=True) == 2
        assert_frame_equal(empty.query(ROWS), store.query(ROWS))
    assert list((tmp_path / "one" / "backups").iterdir()) == []


def test_what_a_killed_command_left_goes_with_the_next_copy(held: Store, tmp_path: Path) -> None:
    folder = Path(held.name.removeprefix("chdb://"), "backups")
    now = time.time_ns()
    for name in (f"ltrain-{now - 2 * 24 * 3600 * 10**9}", f"ltrain-{now}", "mine"):
        (folder / name).mkdir(parents=True)
    (tmp_path / ".copy.tar.999999999-0badcafe.part").write_text("left")
    for database in ("ltrain_restore_1", f"ltrain_restore_{now}"):
        held.command(f"CREATE DATABASE {database}")
    backup(held, tmp_path / "copy.tar")
    assert {path.name for path in folder.iterdir()} == {f"ltrain-{now}", "mine"}
    assert not list(tmp_path.glob(".copy.tar.*"))
    sql = "SELECT name FROM system.databases WHERE startsWith(name, 'ltrain_')"
    assert held.query(sql)["name"].to_list() == [f"ltrain_restore_{now}"]


@pytest.mark.parametrize("spoil", ["cut", "lost", "other", "none"])
def test_an_incomplete_backup_is_refused(held: Store, tmp_path: Path, spoil: str) -> None:
    backup(held, tmp_path / "copy")
    copy = tmp_path / "copy"
    largest = max((each for each in copy.rglob("*.bin")), key=lambda each: each.stat().st_size)
    if spoil == "cut":
        largest.write_bytes(largest.read_bytes()[:-1])
    elif spoil == "lost":
        largest.unlink()
    elif spoil == "other":
        (copy / ".backup").write_text("hello")
    else:
        shutil.rmtree(copy)
    held.command("TRUNCATE TABLE otel.otel_traces")
    with pytest.raises(BadBackup, match=r"is incomplete: .* should have|is not a backup made by"):
        restore(held, copy)


def test_migrate_prints_the_steps(tmp_path: Path) -> None:
    argv = ["store", "migrate", "--store", f"chdb://{tmp_path}/new"]
    result = CliRunner().invoke(app, argv).stdout
    steps, newest = ", ".join(schema.steps()), len(schema.steps())
    assert f"ran {steps}; it is at version {newest}" in result
    assert f"had every step; it is at version {newest}" in CliRunner().invoke(app, argv).stdout
