"""Ratings by people: how many, how far two agree, and where a program differs."""

from pathlib import Path
from typing import Any

import pytest
from tests.otlp import insert_otlp, open_empty_store
from tests.transforms.conftest import Scene

from ltrain_collector.feedback import Conflict, Feedback, Ratings, read_ratings, save_feedback
from ltrain_collector.store import Store


@pytest.fixture
def rollouts(tmp_path: Path) -> Any:
    """Yield a store with three rollouts that a runner scored 1, and their ids."""
    scene = Scene()
    for sample in range(3):
        rollout = scene.attempt("t1", sample)
        rollout.llm("write")
        rollout.evaluate(1.0)
        rollout.close()
    with open_empty_store(tmp_path / "store") as store:
        insert_otlp(store, scene.request())
        yield store, [rollout.rollout for rollout in scene.attempts]


def rate(store: Store, rollout: str, person: str, value: float | None, **more: Any) -> None:
    fields = {"rollout": rollout, "name": "reward", "value": value, **more}
    save_feedback(store, Feedback.model_validate(fields), person)


def test_a_store_without_ratings(rollouts: Any) -> None:
    store, _ = rollouts
    assert read_ratings(store, "reward") == Ratings({}, 0, 0, [])


def test_people_agree_and_programs_do_not(rollouts: Any) -> None:
    store, (first, second, third) = rollouts
    rate(store, first, "ada", 1)
    rate(store, first, "bob", 1)
    rate(store, second, "ada", 0)
    rate(store, second, "bob", 0.75)
    rate(store, second, "bob", None, comment="a note takes no place")
    rate(store, third, "ada", 0.25)
    rate(store, third, "ada", 0)
    rate(store, third, "bob", 0)
    rate(store, third, "bob", None, withdrawn=True)
    found = read_ratings(store, "reward")
    assert (found.people, found.pairs, found.equal) == ({"ada": 3, "bob": 2}, 2, 1)
    # the latest rating of anybody counts: 0.75 of the second; that of the third is withdrawn
    assert found.conflicts == []
    rate(store, third, "ada", 0)
    assert read_ratings(store, "reward").conflicts == [Conflict(third, True, 0.0, 1.0, "runner")]
    assert read_ratings(store, "tone") == Ratings({}, 0, 0, [])
