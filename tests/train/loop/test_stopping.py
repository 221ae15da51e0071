"""The end of a run before its last update, and the version that is served then."""

import tomllib
from pathlib import Path
from typing import Any

import pytest
from tests.otlp import insert_otlp, open_empty_store
from tests.train.loop.test_online import ONE, ROLLOUT, Learning, add_policy, start_run, train_wave
from tests.train.runs.journals import new_journal
from tests.transforms.conftest import RECIPE, Scene

from ltrain_train.runs.journal import Journal
from ltrain_transforms.recipe import Recipe


class Serving(Learning):
    """A fake updater that knows which version it was asked to serve."""

    served: int | None = None

    def serve(self, version: int) -> None:
        self.served = version


def run(tmp_path: Path, samples: int = 1, **train: Any) -> tuple[Journal, Serving, list[str]]:
    """Run at most four updates, with a validation of score 0.5 before and after each."""
    rollout = {**ROLLOUT, "validation_samples": samples}
    section = {"updates": 4, "validate_every": 1, "span_timeout": 0, **train}
    recipe = Recipe.model_validate(tomllib.loads(RECIPE) | {"rollout": rollout, "train": section})
    add_policy(tmp_path)
    scene = Scene()
    for wave in range(5):
        train_wave(scene, wave)
        for sample in range(samples):
            rollout_ = scene.attempt(mode="val", wave=wave, sample=sample)
            rollout_.dispatch()
            rollout_.evaluate(0.5 if samples == 1 else float(sample == 0))
            rollout_.close()
    journal, learning, sentences = new_journal(tmp_path / "run"), Serving(tmp_path), list[str]()
    with open_empty_store(tmp_path / "store") as store:
        insert_otlp(store, scene.request())
        online, _, _ = start_run(tmp_path, store, recipe, journal, learning, validation=ONE)
        online.notify = sentences.append
        online.run()
    return journal, learning, sentences


def test_a_run_without_a_better_validation_ends_and_may_go_on(tmp_path: Path) -> None:
    journal, learning, sentences = run(tmp_path, patience=2)
    assert (journal.updates, journal.finished) == (2, True)
    assert sentences == [
        "The run ends after 2 updates: 2 validations in a row have no better score than 0.500."
    ]
    assert learning.served is None


@pytest.mark.parametrize(
    ("limit", "updates", "sentence"),
    [
        ({"max_tokens": 32}, 2, "it was trained on 32 tokens, and train.max_tokens is 32"),
        ({"max_minutes": 1e-9}, 0, "and train.max_minutes is 1e-09"),
    ],
)
def test_a_run_ends_at_a_budget_with_a_validation(
    tmp_path: Path, limit: dict[str, Any], updates: int, sentence: str
) -> None:
    journal, _, sentences = run(tmp_path, validate_every=0, **limit)
    assert journal.updates == updates
    assert sentence in sentences[0]
    validations = [wave.wave for wave in journal.waves if wave.mode == "val"]
    assert validations == sorted({0, updates})


def test_the_best_version_is_served_at_the_end(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    home = tmp_path / "runs"
    journal, learning, sentences = run(home, samples=4, updates=1, serve="best")
    assert learning.served == 0
    assert sentences == [
        "Version 0 of 'sql' is current, with the best validation score, 0.250; version 1 is the "
        "latest."
    ]
    assert [(wave.rollouts, wave.score) for wave in journal.waves if wave.mode == "val"] == [
        (4, 0.25)
    ] * 2
