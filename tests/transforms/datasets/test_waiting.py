"""Executions wait until all of their group have ended, and had time for late rewards."""

from pathlib import Path
from typing import Any

from tests.otlp import insert_otlp
from tests.transforms.datasets.test_lineage import add_group

from ltrain_collector.store import Store
from ltrain_transforms.datasets.build import build
from ltrain_transforms.recipe import Recipe, Source
from ltrain_transforms.source import Selection, count_ended

SECOND = 1_000_000_000


def test_a_group_counts_when_all_of_its_rollouts_have_ended_in_time(
    scene: Any, store: Store, recipe: Recipe, tmp_path: Path
) -> None:
    add_group(scene, (0, 0, 0, 0), task="t1")
    add_group(scene, (0, 0, 0, 0), task="t2", attempt=2)  # an hour later
    running = scene.attempt("t3", 9)
    running.dispatch()
    add_group(scene, (0, 0, 0), task="t3")
    insert_otlp(store, scene.request())
    whole = build(store, recipe, tmp_path / "whole")
    times = whole.table("executions").select("task_id", "end")
    ends: dict[str, int] = dict(times.group_by("task_id").max().rows())
    until = ends["t1"] + SECOND
    assert ends["t3"] < until < ends["t2"]
    built = build(store, recipe, tmp_path / "built", ended_before=until)
    assert built.table("samples")["rollout_id"].n_unique() == 4
    waiting = built.drops.filter(reason="waiting")["id"].to_list()
    by_task = built.table("executions").select("execution_id", "task_id")
    tasks = dict(by_task.rows())
    assert sorted(tasks[execution] for execution in waiting) == ["t2"] * 4 + ["t3"] * 4
    assert built.manifest["parameters"]["ended_before"] == until
    # the advantages of the group that counts are those of a build of everything
    names = ("execution_id", "call_id", "advantage")
    of_t1 = [execution for execution, task in tasks.items() if task == "t1"]
    transitions = [
        each.table("transitions").select(names).sort("call_id").rows() for each in (whole, built)
    ]
    expected = [row for row in transitions[0] if row[0] in of_t1]
    assert [row for row in transitions[1] if row[0] in of_t1] == expected


def test_spans_of_the_learner_are_no_execution(scene: Any, store: Store) -> None:
    rollout = scene.attempt()
    rollout.llm()
    learner = scene.attempt("t2")
    learner.emit("ltrain.train.step", "ltrain.learner", {}, named=False)
    insert_otlp(store, scene.request())
    source = Source(mode="prod", execution="trace")
    assert count_ended(store, source, Selection.of_source(source), 0, 1 << 62) == 0
    source = Source(mode="all", execution="trace")
    assert count_ended(store, source, Selection.of_source(source), 0, 1 << 62) == 1


def test_ended_executions_are_counted_by_their_last_span(
    scene: Any, store: Store, recipe: Recipe, tmp_path: Path
) -> None:
    add_group(scene, (0, 0, 0, 0), task="t1")
    add_group(scene, (0, 0), task="t2", attempt=2)
    insert_otlp(store, scene.request())
    executions = build(store, recipe, tmp_path / "built").table("executions")
    first, last = (max(executions.filter(task_id=task)["end"]) for task in ("t1", "t2"))
    selection = Selection.of_source(recipe.source)
    counts = [
        count_ended(store, recipe.source, selection, after, until)
        for after, until in ((0, first + SECOND), (first + SECOND, last + SECOND), (0, first // 2))
    ]
    assert counts == [4, 2, 0]
    since = "2100-01-01T00:00:00+00:00"
    later = Selection.of_source(recipe.source, since=since)
    assert count_ended(store, recipe.source, later, 0, last + SECOND) == 0
