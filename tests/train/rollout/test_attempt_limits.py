"""Attempts that the model server makes late lower how many run at a time."""

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ltrain_train.rollout.attempt_limits import Concurrency


def ended(name: str, *, late: bool = False) -> Any:
    return SimpleNamespace(running=SimpleNamespace(attempt=SimpleNamespace(id=name)), late=late)


def test_a_late_attempt_halves_what_runs_at_a_time(caplog: pytest.LogCaptureFixture) -> None:
    limit, running = Concurrency(32), [str(number) for number in range(20)]
    assert not limit.is_reached(40), "places of the processes are the limit at first"
    limit.add(ended("3", late=True), running)
    assert limit.limit == 10
    assert limit.is_reached(10) and not limit.is_reached(9)
    assert "at most 10 rollouts at a time now: the model server answered" in caplog.text


def test_attempts_of_one_slow_moment_lower_the_limit_once() -> None:
    limit, running = Concurrency(32), [str(number) for number in range(32)]
    for name in running[:5]:
        limit.add(ended(name, late=True), running)
    assert limit.limit == 16
    limit.add(ended("later", late=True), [*running[6:], "later"])
    assert limit.limit == 8


def test_attempts_that_end_in_time_raise_it_to_the_most() -> None:
    limit, running = Concurrency(32), [str(number) for number in range(32)]
    limit.add(ended("0", late=True), running)
    steps = []
    for _ in range(60):
        limit.add(ended("new"), running)
        steps.append(limit.limit)
    assert sorted(set(steps)) == [16, 24, 32]
    assert steps.index(24) == 15, "after as many as run at a time"


def test_a_users_number_is_never_changed() -> None:
    limit = Concurrency(0)
    limit.add(ended("0", late=True), ["0", "1", "2", "3"])
    assert not limit.is_reached(10_000)


@given(st.integers(1, 64), st.lists(st.tuples(st.booleans(), st.integers(1, 64))))
def test_it_stays_between_one_and_the_most(most: int, ends: list[tuple[bool, int]]) -> None:
    limit = Concurrency(most)
    for number, (late, in_flight) in enumerate(ends):
        limit.add(
            ended(f"{number}.0", late=late), [f"{number}.{each}" for each in range(in_flight)]
        )
        assert 1 <= limit.limit <= most
