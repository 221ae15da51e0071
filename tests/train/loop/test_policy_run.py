"""Every rollout of a wave is in its dataset: compared, or dropped with a reason."""

from pathlib import Path

import pytest
from tests.otlp import insert_otlp, open_empty_store
from tests.transforms.conftest import RECIPE, Scene

from ltrain_train.errors import WaveMismatch
from ltrain_train.loop.policy_run import require_rollouts
from ltrain_transforms.datasets import Dataset, build
from ltrain_transforms.ended_rollout import EndedRollout
from ltrain_transforms.recipe import Recipe


def play(scene: Scene, task: str, *scores: float | None) -> list[EndedRollout]:
    """Add a group of attempts; one without a score fails before its first call."""
    ends = []
    for sample, score in enumerate(scores):
        attempt = scene.attempt(task, sample)
        attempt.dispatch()
        if score is not None:
            attempt.llm("write", (1, 2, 3), (4, sample))
            attempt.evaluate(score)
        outcome = "error" if score is None else "ok"
        attempt.close(outcome)
        rollout = str(attempt.identity.rollout)
        ends.append(EndedRollout(rollout=rollout, attempt=1, task=task, wave=0, outcome=outcome))
    return ends


def dataset_of(scene: Scene, folder: Path) -> Dataset:
    (folder / "ltrain.toml").write_text(RECIPE)
    with open_empty_store(folder / "store") as store:
        insert_otlp(store, scene.request())
        return build(store, Recipe.load(folder / "ltrain.toml"), folder / "dataset")


def test_rollouts_without_a_call_are_dropped_with_a_reason(tmp_path: Path) -> None:
    scene = Scene()
    ends = play(scene, "t1", 0.0, 1.0) + play(scene, "t2", None, None)
    ends += play(scene, "t3", None, 1.0)
    require_rollouts(dataset_of(scene, tmp_path), ends)


def test_a_rollout_that_the_dataset_lacks_is_an_error(tmp_path: Path) -> None:
    scene = Scene()
    ends, lost = play(scene, "t1", 0.0, 1.0), play(Scene(), "t2", 1.0)
    with pytest.raises(WaveMismatch, match=f"it lacks {lost[0].rollout}.1"):
        require_rollouts(dataset_of(scene, tmp_path), ends + lost)
