"""The rollouts of a run that are worth a look, and runs in the same charts."""

from pathlib import Path
from typing import Any

import pytest
from tests.otlp import insert_otlp

from ltrain_collector.store import Store
from ltrain_transforms.reports import (
    Chart,
    Kind,
    Progress,
    Reference,
    look_at,
    query_waves,
    run_overlay,
)

SECOND = 1_000_000_000


def rollout(scene: Any, task: str, sample: int, wave: int, reward: float, mode: str) -> Any:
    made = scene.attempt(task, sample, wave=wave, mode=mode)
    made.clock += (2 * wave + (mode == "train")) * 100 * SECOND
    made.dispatch()
    made.spans[-1].attributes["ltrain.task.input"] = f'"Question {task}?"'
    made.llm("write", gateway={"ltrain.policy.version": wave})
    made.evaluate(reward)
    return made


@pytest.fixture
def rollouts(scene: Any, store: Store) -> dict[str, str]:
    """Store two validations and two waves; return the ids of rollouts by what they are."""
    found = {}
    for wave, scores in enumerate(((1.0, 0.0, 0.5), (0.0, 1.0, 0.5))):
        for task, score in zip(("v1", "v2", "v3"), scores, strict=True):
            made = rollout(scene, task, 0, wave, score, "val")
            made.close()
            found[f"{task} {wave}"] = made.rollout
        for sample in range(3):
            made = rollout(scene, "t1", sample, wave, float(sample == 1), "train")
            if sample == 2:
                made.tool(error="boom()")
            if sample == 0:
                made.evaluate(0.9, name="polite", by="ltrain.instrument")
            made.close()
            found[f"t1.{sample} {wave}"] = made.rollout
    insert_otlp(store, scene.request())
    return found


def test_each_rollout_has_its_reason(store: Store, rollouts: dict[str, str]) -> None:
    waves = query_waves(store, "demo")
    grid = look_at(store, "demo", waves.waves, waves.alarms)

    def of(name: str, task: str) -> Reference:
        return Reference(Kind.ROLLOUT, rollouts[name], f"Question {task}?")

    assert grid.rows == (
        (of("v1 1", "v1"), "largest drop since sql@0: 1.000 before", 0.0),
        (of("v2 1", "v2"), "largest gain since sql@0: 0 before", 1.0),
        (of("t1.1 1", "t1"), "furthest above its group of 3, whose mean is 0.333", 1.0),
        (of("t1.2 1", "t1"), "1 failed span, such as execute_query", 0.0),
        (of("t1.0 1", "t1"), "its evaluations differ: polite 0.900, reward 0", None),
    )


def test_a_run_without_scores_has_nothing_to_look_at(store: Store, scene: Any) -> None:
    scene.attempt("t1", 0).close()
    insert_otlp(store, scene.request())
    waves = query_waves(store, "demo")
    assert look_at(store, "demo", waves.waves, waves.alarms).rows == ()
    assert look_at(store, "demo", (), ()).rows == ()


@pytest.mark.parametrize(
    ("by", "places"),
    [(Progress.WAVE, (0, 1)), (Progress.ROLLOUT, (0, 3)), (Progress.TOKEN, (0, 0))],
)
def test_runs_are_drawn_by_their_progress(
    store: Store, rollouts: dict[str, str], tmp_path: Path, by: Progress, places: tuple[int, int]
) -> None:
    report = run_overlay(store, tmp_path, ["demo", "absent"], by)
    charts = {part.title: part for part in report.parts if isinstance(part, Chart)}
    held_out = charts["Held-out score, 95 % interval"]
    assert held_out.series == (("demo", ((places[0], 0.5), (places[1], 0.5))),)
    assert [x for x, _, _ in held_out.bands["demo"]] == list(places)
    [low, high] = held_out.bands["demo"][0][1:]
    # 1, 0 and 0.5: a standard error of sqrt(1/6 / 2)
    assert (low, high) == pytest.approx((0.5 - 1.96 * 0.288675, 0.5 + 1.96 * 0.288675), abs=1e-5)


def test_hours_count_from_the_first_span(
    store: Store, rollouts: dict[str, str], tmp_path: Path
) -> None:
    report = run_overlay(store, tmp_path, ["demo"], Progress.HOUR)
    [chart] = (part for part in report.parts if part.title == "Reward in training")
    assert isinstance(chart, Chart) and not chart.is_integer
    [(_, points)] = chart.series
    assert [round(x * 3600) for x, _ in points] == [100, 300]
