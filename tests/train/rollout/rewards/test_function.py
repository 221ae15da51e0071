"""What a reward function may return, and the error for anything else."""

import sys
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from ltrain_train.rollout.rewards import RewardFailed, function, source
from ltrain_train.rollout.rewards.function import RewardFunction
from ltrain_train.rollout.tasks import Task
from ltrain_train.workers.reference import BadReference

AGENTS = Path(__file__).parents[1] / "agents"


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "RETRY_PAUSE", 0.0)
    monkeypatch.setattr(sys, "path", [*sys.path])


@pytest.mark.parametrize(
    ("reference", "rewards"),
    [
        ("scores:words", {"reward": 2.0}),
        ("scores:several", {"answer": 0.5, "style": 2.0}),
        ("scores:in_its_time", {"reward": 0.25}),
    ],
)
def test_functions_and_coroutines_return_a_number_or_numbers_by_name(
    reference: str, rewards: dict[str, float]
) -> None:
    assert RewardFunction(reference, AGENTS).score(Task(id="a", input="x"), "two words") == rewards


@pytest.mark.parametrize("value", [None, "1", [1.0], float("nan"), float("inf"), {"a": "b"}])
def test_a_value_that_is_not_a_finite_number_is_refused(value: Any) -> None:
    task = Task.model_validate({"id": "a", "input": "x", "value": value})
    with pytest.raises(RewardFailed, match="scores:unusable failed on task 'a'"):
        RewardFunction("scores:unusable", AGENTS).score(
            task.model_copy(update={"value": value}), None
        )


@pytest.mark.parametrize("value", [1e308, -1.1e100, 10**400, {"answer": 1.0, "speed": 2e100}])
def test_a_value_whose_mean_may_overflow_is_refused(value: Any) -> None:
    task = Task.model_validate({"id": "a", "input": "x", "value": value})
    with pytest.raises(RewardFailed, match=r"on task 'a': .* Pass a number from -1e\+100 to"):
        RewardFunction("scores:unusable", AGENTS).score(task, None)


def test_the_largest_rewards_have_a_mean() -> None:
    task = Task.model_validate({"id": "a", "input": "x", "value": -1e100})
    assert RewardFunction("scores:unusable", AGENTS).score(task, None) == {"reward": -1e100}


@pytest.mark.parametrize("name", ["hangs", "hangs_async"])
def test_a_function_that_does_not_return_in_time_has_failed(name: str) -> None:
    began = time.monotonic()
    with pytest.raises(RewardFailed, match=f"scores:{name} has not returned after 0.5 s on task"):
        RewardFunction(f"scores:{name}", AGENTS, timeout=0.5).score(Task(id="a", input="x"), None)
    assert time.monotonic() - began < 20


def test_a_function_that_returns_just_after_its_time_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Late(Future[dict[str, float]]):
        """A future whose result arrives just after its timeout."""

        def result(self, timeout: float | None = None) -> dict[str, float]:
            value = super().result()
            if timeout is not None:
                raise TimeoutError
            return value

    monkeypatch.setattr(function, "Future", Late)
    assert RewardFunction("scores:words", AGENTS).score(Task(id="a", input="x"), "two words")


def test_a_function_that_raises_a_timeout_of_its_own_is_tried_again() -> None:
    with pytest.raises(RewardFailed, match="TimeoutError: the judge does not answer"):
        RewardFunction("scores:gives_up", AGENTS).score(Task(id="a", input="x"), None)


def test_a_reference_must_name_a_function() -> None:
    with pytest.raises(BadReference, match=r"no function 'wrods'.*Did you mean 'scores:words'"):
        RewardFunction("scores:wrods", AGENTS)
