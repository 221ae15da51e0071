"""The tables of a store's runs and a home's policies and datasets, and the report on a wave."""

import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tests.otlp import insert_otlp
from tests.transforms.conftest import Scene
from tests.transforms.reports.test_policy import publish

from ltrain_collector.errors import QueryFailed
from ltrain_collector.feedback import Feedback, save_feedback
from ltrain_collector.store import Store
from ltrain_transforms.datasets import Dataset, build, dataset_folder
from ltrain_transforms.errors import NothingToShow
from ltrain_transforms.recipe import Recipe
from ltrain_transforms.reports import (
    GroupReference,
    Kind,
    Reference,
    Report,
    RunTable,
    WaveReference,
    dataset_table,
    home_runs,
    overview,
    policy_table,
    run_watermark,
    wave_report,
)
from ltrain_transforms.reports.report import Chart, Facts, Grid, Spark
from ltrain_transforms.reports.wave_rewards import apply_recipe, read_results
from ltrain_transforms.reports.waves import query_waves
from ltrain_transforms.show import trained_run_report
from ltrain_transforms.show.lookup import ignore_status


@pytest.fixture
def waves(scene: Any, store: Store, recipe: Recipe, tmp_path: Path) -> list[Dataset]:
    """Two waves with datasets, and a third without one, in which a rollout failed to start."""
    for wave in range(3):
        for task in ("t1", "t2"):
            for sample in range(2):
                rollout = scene.attempt(task, sample, wave=wave)
                rollout.dispatch()
                rollout.llm("write", (1, 2), (3,))
                rollout.tool(error="boom()" if sample == 0 else "")
                rollout.evaluate(float(sample) if task == "t2" else 0.5 * wave)
                rollout.evaluate(1.0, name="speed")
                rollout.close()
    failed = scene.attempt("t3", 0, wave=2)
    failed.evaluate(9.0)
    failed.close("infra")
    insert_otlp(store, scene.request())
    return [
        build(store, recipe, dataset_folder(tmp_path, "demo", "train", wave), wave=wave)
        for wave in range(2)
    ]


def grid(found: Report, title: str) -> Grid:
    (part,) = (part for part in found.parts if part.title.startswith(title))
    assert isinstance(part, Grid)
    return part


def test_runs_with_their_first_and_last_reward(
    waves: list[Dataset], store: Store, tmp_path: Path
) -> None:
    ((run, state, count, rollouts, train, val, alarms, dropped, *times),) = (
        RunTable().read(store, tmp_path).rows
    )
    assert run == Reference(Kind.RUN, "demo")
    assert (count, rollouts) == (3, 13)
    # (0 + 0 + 0 + 1) / 4, and (1 + 1 + 0 + 1) / 4 without the rollout that did not start
    assert (train, val, alarms) == (Spark((0.25, 0.5, 0.75), "0.250 to 0.750"), None, None)
    assert (state, dropped) == ("unknown", "0% of wave 1")
    assert len(times) == 2


def test_only_runs_that_have_changed_are_read_again(
    waves: list[Dataset], store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Scene("other")
    other.attempt().close()
    insert_otlp(store, other.request())
    read: list[list[str]] = []
    query = store.query

    def counting(sql: str, params: Any = None) -> Any:
        if params and "runs" in params:
            read.append(params["runs"])
        return query(sql, params)

    monkeypatch.setattr(store, "query", counting)
    table = RunTable()
    first = table.read(store, tmp_path)
    assert {tuple(sorted(runs)) for runs in read} == {("demo", "other")}
    read.clear()
    assert table.read(store, tmp_path) == first and not read
    etag = run_watermark(store, tmp_path, "demo")
    late = other.attempt(sample=1)
    late.close()
    insert_otlp(store, other.request())
    again = table.read(store, tmp_path)
    assert {tuple(runs) for runs in read} == {("other",)}
    assert len(again.rows) == 2
    assert run_watermark(store, tmp_path, "demo") == etag
    feedback = Feedback.model_validate({"trace": late.trace, "name": "reward", "value": 1})
    save_feedback(store, feedback, "alice")  # it names no run, so it may be of any
    assert run_watermark(store, tmp_path, "demo") != etag
    read.clear()
    table.read(store, tmp_path, ("admin",))
    assert {tuple(sorted(runs)) for runs in read} == {("demo", "other")}


def test_the_table_of_a_large_store_comes_before_its_figures(
    waves: list[Dataset], store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    complete = RunTable().read(store, tmp_path)
    may_read, query = threading.Event(), store.query

    def waiting(sql: str, params: Any = None) -> Any:
        if params and "runs" in params:
            may_read.wait()
        return query(sql, params)

    monkeypatch.setattr(store, "query", waiting)
    monkeypatch.setattr(overview, "LARGE", 1)
    table = RunTable()
    ((run, _, *cells),) = table.read(store, tmp_path).rows
    assert (run, set(cells)) == (Reference(Kind.RUN, "demo"), {"…", "0% of wave 1"})
    assert table.read(store, tmp_path).rows[0][2] == "…"  # the first reading goes on
    assert table.is_reading
    may_read.set()
    while table.is_reading:
        time.sleep(0.01)
    assert table.read(store, tmp_path) == complete


def test_figures_that_cannot_be_read_are_an_error_and_read_again(
    waves: list[Dataset], store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, query = RunTable(), store.query

    def failing(sql: str, params: Any = None) -> Any:
        if params and "runs" in params:
            raise QueryFailed("no memory", 241)
        return query(sql, params)

    monkeypatch.setattr(store, "query", failing)
    with pytest.raises(QueryFailed, match="no memory"):
        table.read(store, tmp_path)
    monkeypatch.setattr(store, "query", query)
    assert table.read(store, tmp_path) == RunTable().read(store, tmp_path)


def test_an_empty_store_and_home_have_no_rows(store: Store, tmp_path: Path) -> None:
    assert RunTable().read(store, tmp_path).rows == home_runs(tmp_path).rows == ()
    assert policy_table(tmp_path / "none").rows == dataset_table(tmp_path / "none").rows == ()


def test_policies_and_datasets_of_a_home(waves: list[Dataset], tmp_path: Path) -> None:
    publish(tmp_path, 0, None)
    publish(tmp_path, 1, 0, waves[0].id)
    (tmp_path / "policies" / "sql" / "current").write_text("1\n")
    (row,) = policy_table(tmp_path).rows
    assert row == (
        Reference(Kind.POLICY, "sql"),
        Reference(Kind.POLICY, "sql@1", "1"),
        None,
        2,
        Reference(Kind.DATASET, waves[0].id),
        "2026-09-21 14:13",
    )
    # a damaged manifest does not hide the others
    (tmp_path / "policies" / "sql" / "v1" / "policy.json").write_text("{")
    (tmp_path / "datasets" / "broken").mkdir()
    (tmp_path / "datasets" / "broken" / "manifest.json").write_text("{")
    assert policy_table(tmp_path).rows[0][4] is None
    first, second = dataset_table(tmp_path).rows
    assert first[:4] == (Reference(Kind.DATASET, waves[0].id), "demo/train/0", 4, 4)
    assert second[5] == "datasets/demo/train-1"


def test_results_of_datasets_are_those_of_their_recipe(
    waves: list[Dataset], store: Store, recipe: Recipe, tmp_path: Path
) -> None:
    all_waves = query_waves(store, "demo").waves
    built = [each for wave in (0, 1) for each in all_waves if each.wave == wave]
    read = read_results(tmp_path, "demo", all_waves)
    assert read is not None
    applied = apply_recipe(store, recipe, "demo", built, ignore_status)
    assert read.rules.equals(applied.rules)
    assert read.drops.equals(applied.drops)
    assert read.samples.equals(applied.samples)
    assert read.other_spans == applied.other_spans


def test_a_run_without_datasets_has_no_rules(
    waves: list[Dataset], store: Store, tmp_path: Path
) -> None:
    found = trained_run_report(store, tmp_path, "demo", ())
    titles = [part.title for part in found.parts if isinstance(part, Chart)]
    assert "Reward by rule" in titles
    elsewhere = trained_run_report(store, tmp_path / "none", "demo", ())
    assert "Reward by rule" not in [part.title for part in elsewhere.parts]
    facts = elsewhere.parts[0]
    assert isinstance(facts, Facts)
    assert facts.rows[-1] == ("judged by", f"no dataset of its waves in {tmp_path}/none")
    with pytest.raises(NothingToShow, match="Did you mean the run 'demo'"):
        trained_run_report(store, tmp_path, "dmeo", ())


def test_a_wave_from_rollouts_to_tokens(waves: list[Dataset], store: Store, tmp_path: Path) -> None:
    found = wave_report(store, tmp_path, WaveReference("demo", "train", 1))
    assert grid(found, "From rollouts to tokens").rows == (
        ("rollouts in the store", 4),
        ("rollouts that the agent ended", 4),
        ("executions", 4),
        ("calls", 16),
        ("calls of the policy with an advantage", 4),
        ("rows", 4),
        ("trained tokens", 4),
    )
    groups = grid(found, "Groups")
    means = ("reward mean", "speed mean")
    assert groups.columns == ("task", "rollouts", "reward min", "reward max", *means)
    assert groups.rows == (
        (GroupReference("demo", "train", 1, "t2"), 2, 0.0, 1.0, 0.5, 1.0),
        (GroupReference("demo", "train", 1, "t1"), 2, 0.5, 0.5, 0.5, 1.0),
    )


def test_a_rollout_that_did_not_start_is_in_no_group(
    waves: list[Dataset], store: Store, tmp_path: Path
) -> None:
    found = wave_report(store, tmp_path, WaveReference("demo", "train", 2))
    facts = found.parts[0]
    assert isinstance(facts, Facts)
    assert facts.rows[2:] == (("rollouts", "5"), ("rollouts infra", "1"), ("rollouts ok", "4"))
    assert [str(row[0]) for row in grid(found, "Groups").rows] == ["t2", "t1"]
    with pytest.raises(NothingToShow, match="no rollout of wave 3 of run 'demo' in mode 'train'"):
        wave_report(store, tmp_path, WaveReference("demo", "train", 3))
