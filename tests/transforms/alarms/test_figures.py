"""The figures of a wave's dataset, and the rollouts that show what an alarm is about."""

from dataclasses import asdict
from typing import Any

import polars as pl
import pytest

from ltrain_transforms.alarms import (
    Alarm,
    DatasetFigures,
    WaveFigures,
    find_alarms,
    read_figures,
    read_update,
    with_examples,
)
from ltrain_transforms.datasets.pipeline import derive
from ltrain_transforms.recipe import Recipe
from ltrain_transforms.tables import TABLES


@pytest.fixture
def tables(scene: Any, read_back: Any, recipe: Recipe) -> dict[str, pl.DataFrame]:
    """Two groups of three rollouts: the first without spread, the second with a lost call."""
    for task in ("t1", "t2"):
        for sample in range(3):
            rollout = scene.attempt(task, sample)
            constrained = (task, sample) == ("t2", 0)
            gateway = {"ltrain.constrained": True} if constrained else {}
            rollout.llm(response=tuple(range(4, 6 + sample)), gateway=gateway)
            if task == "t2":
                rollout.tool(error="no" if sample == 1 else "")
            rollout.evaluate(float(task == "t2" and sample == 2))
            rollout.close()
    failed = scene.attempt("t2", 9)
    failed.llm(response=tuple(range(100)))
    failed.close("infra")
    return derive(read_back(scene), recipe).tables


def rollouts(scene: Any, *numbers: int) -> tuple[str, ...]:
    return tuple(scene.attempts[number].rollout for number in numbers)


def test_the_figures_are_of_the_rollouts_that_count(tables: dict[str, pl.DataFrame]) -> None:
    figures = read_figures(lambda name: tables[name].lazy())
    assert figures == DatasetFigures(
        lowest=0.0,
        best=1.0,
        outcomes=6,
        commonest=0.0,
        commonest_share=5 / 6,
        without_spread=0.5,
        distinct_answers=None,  # no runner recorded a result
        response_tokens=3.0,
        tools={"execute_query": 0.5},
        lost={"constrained": 1 / 7, "infra": 1 / 7},
    )


def test_results_are_counted_where_they_are_recorded(tables: dict[str, pl.DataFrame]) -> None:
    results = pl.Series("result", ["a", "a", "a", "b", None, "b", "c"])
    executions = tables["executions"].sort("rollout_id").with_columns(results)
    counted = executions.filter(pl.col("outcome") == "ok")["result"].drop_nulls()
    figures = read_figures(lambda name: (tables | {"executions": executions})[name].lazy())
    assert figures.distinct_answers == counted.n_unique() / len(counted)


def test_an_update_has_its_figures_and_the_means_of_its_rewards(
    tables: dict[str, pl.DataFrame],
) -> None:
    update = read_update(3, lambda name: tables[name].lazy(), ("drops and low rewards",))
    assert update == WaveFigures(
        **asdict(read_figures(lambda name: tables[name].lazy())),
        wave=3,
        outcome=1 / 6,
        rules={"tool-failed": -0.2 / 7},  # of all executions, as in an online run
        selective=("drops and low rewards",),
    )


def test_an_empty_dataset_has_no_figures() -> None:
    empty = {table.name: table.schema.to_frame() for table in TABLES}
    assert read_figures(lambda name: empty[name].lazy()) == DatasetFigures()
    assert read_update(0, lambda name: empty[name].lazy()) == WaveFigures(wave=0)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("name", "subject", "numbers"),
    [
        ("divergence", "tool-failed", (4,)),
        ("silent_tool", "execute_query", (0, 1, 2, 3, 4)),
        ("drops", "constrained", (3,)),
        ("selective_drops", "infra", (6,)),
        ("logprob_drift", "", ()),
        ("few_answers", "", ()),
    ],
)
def test_an_alarm_names_rollouts_to_read(
    scene: Any,
    tables: dict[str, pl.DataFrame],
    name: str,
    subject: str,
    numbers: tuple[int, ...],
) -> None:
    found = with_examples(Alarm(name, 0, "it", subject), lambda table: tables[table].lazy())
    assert set(found.rollouts) == set(rollouts(scene, *numbers))
    assert len(found.rollouts) == len(numbers) and found.tasks == ()


def test_the_longest_and_the_shortest_rollouts_come_first(
    scene: Any, tables: dict[str, pl.DataFrame]
) -> None:
    longer, shorter = (
        with_examples(Alarm("length_drift", 0, "it", way), lambda table: tables[table].lazy())
        for way in ("longer", "shorter")
    )
    assert longer.rollouts[0] == rollouts(scene, 6)[0]
    assert set(longer.rollouts[1:3]) == set(rollouts(scene, 2, 5))
    assert set(shorter.rollouts[:2]) == set(rollouts(scene, 0, 3))
    assert len(longer.rollouts) == 5
    assert longer.sentence == f"it; read `ltrain show {longer.rollouts[0][:12]}`"


def test_a_farmed_wave_raises_an_alarm_with_three_rollouts_of_different_tasks(
    scene: Any, read_back: Any, recipe: Recipe
) -> None:
    for number in range(48):
        rollout = scene.attempt(f"t{number // 4}", number % 4)
        rollout.llm()
        rollout.evaluate({0: 0.0, 47: 1.0}.get(number, 0.2))
        rollout.close()
    tables = derive(read_back(scene), recipe).tables

    def scan(name: str) -> pl.LazyFrame:
        return tables[name].lazy()

    [alarm] = find_alarms([read_update(0, scan)])
    assert alarm.message.startswith("wave 0: 46 of 48 rollouts have the outcome 0.2, and the best")
    found = with_examples(alarm, scan)
    tasks = {each.rollout: each.identity.task for each in scene.attempts[1:47]}
    assert len({tasks[rollout] for rollout in found.rollouts}) == 3
    assert f"read `ltrain show {found.rollouts[0][:12]}`" in found.sentence


def test_an_alarm_about_groups_names_tasks(tables: dict[str, pl.DataFrame]) -> None:
    found = with_examples(Alarm("no_spread", 0, "it"), lambda table: tables[table].lazy())
    assert (found.tasks, found.rollouts) == (("t1",), ())
    assert found.sentence == "it; see task 't1'"
