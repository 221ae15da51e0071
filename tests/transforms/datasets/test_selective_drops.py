"""A wave whose drops correlate with low reward raises an alarm; random drops do not."""

from pathlib import Path
from typing import Any

import pytest
from tests.otlp import insert_otlp

from ltrain_collector.store import Store
from ltrain_train.runs.journal import Wave
from ltrain_train.runs.report import wave_notes
from ltrain_transforms.calls import span_errors
from ltrain_transforms.datasets.build import build
from ltrain_transforms.datasets.pipeline import derive
from ltrain_transforms.datasets.selective_drops import (
    AGENT_CAUSED,
    Alarm,
    alarms_by_wave,
    mann_whitney_p,
)
from ltrain_transforms.recipe import Recipe
from ltrain_transforms.reports import dataset_report
from ltrain_transforms.samples.row_filters import REASONS


def test_every_row_filter_is_declared_as_caused_by_the_agent() -> None:
    assert set(REASONS) <= set(AGENT_CAUSED)
    assert set(span_errors.SPAN_REASONS) <= set(AGENT_CAUSED)


@pytest.mark.parametrize(
    ("low", "others", "p"),
    [
        ([0.0] * 5, [1.0] * 5, 0.002),  # scipy.stats.mannwhitneyu(…, "less", method="asymptotic")
        ([1, 2, 3, 4, 5], [6, 7, 8, 9, 10], 0.006),
        ([6, 7, 8, 9, 10], [1, 2, 3, 4, 5], 0.996),
        ([1.0] * 9, [1.0] * 9, 1.0),
        ([], [1.0], 1.0),
    ],
)
def test_mann_whitney_p(low: list[float], others: list[float], p: float) -> None:
    assert mann_whitney_p(low, others) == pytest.approx(p, abs=0.001)


def play(scene: Any, plan: list[tuple[float, bool]]) -> None:
    """Play rollouts of one task each with a reward, and whether its calls were constrained."""
    for sample, (reward, constrained) in enumerate(plan):
        rollout = scene.attempt(sample=sample)
        rollout.llm(gateway={"ltrain.constrained": True} if constrained else {})
        rollout.evaluate(reward)
        rollout.close()


def test_an_agent_that_drops_its_bad_rollouts_raises_an_alarm(
    store: Store, recipe: Recipe, tmp_path: Path, scene: Any
) -> None:
    play(scene, [(0.0, True)] * 6 + [(0.0, False)] * 2 + [(1.0, False)] * 8)
    insert_otlp(store, scene.request())
    made = build(store, recipe, tmp_path / "out", run=scene.run)
    sentence = (
        "wave 0: executions with calls dropped as `constrained` have low rewards "
        "(mean 0.00, others 0.80, p = 0.0017): the agent may choose which rollouts are trained; "
        "see docs/samples.md"
    )
    assert made.manifest["alarms"] == {"demo/train/0": [sentence]}
    shown = [part for part in dataset_report(made).parts if part.title == "Alarms"]
    assert [getattr(part, "rows", None) for part in shown] == [(("demo/train/0", sentence),)]


def test_random_drops_raise_no_alarm(scene: Any, read_back: Any, recipe: Recipe) -> None:
    play(scene, [(float(n % 2), n % 3 == 0) for n in range(24)])
    tables = derive(read_back(scene), recipe).tables
    assert alarms_by_wave(lambda name: tables[name].lazy()) == {}


def test_a_broken_span_counts_for_its_execution(scene: Any, read_back: Any, recipe: Recipe) -> None:
    play(scene, [(0.0, False)] * 6 + [(1.0, False)] * 8)
    for attempt in scene.attempts[:6]:
        attempt.emit("loop", "mine", {}, span=attempt.id(900), parent=attempt.id(900))
    tables = derive(read_back(scene), recipe).tables
    [sentence] = alarms_by_wave(lambda name: tables[name].lazy())["demo/train/0"]
    assert "dropped as `cyclic_parents` have low rewards (mean 0.00, others 1.00" in sentence


def test_a_client_that_gives_up_may_have_a_slow_model_server() -> None:
    assert str(Alarm("demo", 3, "undelivered", 0.12, 0.71, 0.001)).endswith(
        "which rollouts are trained, or its client gives up on a slow model server; see "
        "docs/samples.md"
    )


def test_a_wave_of_a_run_prints_its_alarms() -> None:
    message = str(Alarm("demo", 3, "constrained", 0.12, 0.71, 0.001))
    wave = Wave(
        policy="sql", mode="train", wave=3, version=1, rollouts=8, outcomes={}, evaluations={},
        alarms=(message,),
    )  # fmt: skip
    assert list(wave_notes(wave))[1] == (
        "  alarm: wave 3: executions with calls dropped as `constrained` have low rewards "
        "(mean 0.12, others 0.71, p = 0.0010): the agent may choose which rollouts are trained; "
        "see docs/samples.md"
    )
