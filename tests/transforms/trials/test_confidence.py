"""Bounds of a difference: the formula, its error rates, and small or rare samples."""

import math
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ltrain_transforms.trials import ArmTotals, compare


def totals(units: list[list[float]]) -> ArmTotals:
    """Return the totals of units, each with its values."""
    n = np.array([len(each) for each in units], float)
    s = np.array([sum(each) for each in units], float)
    parts = (n, s, n * n, s * s, n * s)
    return ArmTotals(float(len(units)), *(float(part.sum()) for part in parts))


def test_the_bounds_are_those_of_the_formula() -> None:
    candidate = totals([[1.0]] * 60 + [[0.0]] * 40)
    current = totals([[1.0]] * 150 + [[0.0]] * 150)
    found = compare(candidate, current, 0.05, horizon=1000)
    variance = 300 / 299 * 0.25
    deviation = math.sqrt(variance / 0.25 + variance / 0.75)
    log = -2 * math.log(0.1)
    rate = (log + math.log(log + 1)) / 1000
    t = 400
    inner = 2 * (t * rate + 1) / (t * t * rate) * math.log(1 + math.sqrt(t * rate + 1) / 0.1)
    assert found.mean == pytest.approx(0.1)
    assert found.upper - found.mean == pytest.approx(deviation * math.sqrt(inner))
    assert found.mean - found.lower == pytest.approx(deviation * math.sqrt(inner))


def test_the_variance_is_that_of_units_and_not_of_their_values() -> None:
    alike = totals([[1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 0.0]] * 50)
    alone = totals([[1.0], [0.0]] * 50)
    assert alike.variance == pytest.approx(alone.variance)
    mixed = totals([[1.0, 0.0, 1.0, 0.0]] * 100)
    assert mixed.variance == 0.0


@given(
    st.lists(st.lists(st.floats(-10, 10), min_size=1, max_size=4), min_size=2, max_size=30),
    st.floats(-5, 5),
)
def test_a_shift_of_all_values_moves_the_mean_alone(units: list[list[float]], shift: float) -> None:
    before, after = totals(units), totals([[x + shift for x in each] for each in units])
    assert after.mean == pytest.approx(before.mean + shift, abs=1e-9)
    assert after.variance == pytest.approx(before.variance, abs=1e-6)


@pytest.mark.parametrize("units", [0, 1, 49])
def test_a_small_arm_has_no_bounds(units: int) -> None:
    found = compare(totals([[1.0]] * units), totals([[0.0], [1.0]] * 500), 0.05)
    assert (found.lower, found.upper) == (-math.inf, math.inf)


def test_an_arm_without_a_rare_failure_is_not_better() -> None:
    flawless = totals([[1.0]] * 60)
    current = totals([[1.0]] * 530 + [[0.0]] * 10)
    found = compare(flawless, current, 0.05)
    assert found.mean > 0 > found.lower


def walk(rng: np.random.Generator, trials: int, units: int, rates: Any, share: float) -> Any:
    """Return the difference after each unit of each trial."""
    is_candidate = rng.random((trials, units)) < share
    successes = rng.random((trials, units)) < np.where(is_candidate, rates[0], rates[1])
    arms = []
    for arm in (is_candidate, ~is_candidate):
        n, s = arm.astype(float), (successes & arm).astype(float)
        arms.append(ArmTotals(*(np.cumsum(part, axis=1) for part in (n, n, s, n, s, s))))
    return compare(arms[0], arms[1], 0.05, horizon=1000)


@pytest.mark.parametrize(("base", "share"), [(0.5, 0.5), (0.5, 0.1), (0.98, 0.1)])
def test_equal_versions_are_told_apart_in_few_trials(base: float, share: float) -> None:
    found = walk(np.random.default_rng(1), 600, 2000, (base, base), share)
    for crossed in (found.lower > 0, found.upper < 0):
        assert crossed.any(axis=1).mean() <= 0.05


def test_a_better_version_is_found() -> None:
    found = walk(np.random.default_rng(2), 100, 5000, (0.6, 0.5), 0.5)
    assert (found.lower > 0).any(axis=1).mean() > 0.95
    covers = (found.lower <= 0.1) & (found.upper >= 0.1)
    assert covers.all(axis=1).mean() >= 0.9


def test_totals_have_the_columns_of_the_query() -> None:
    names = ["units", "values", "total", "values_squared", "total_squared", "product"]
    assert [each.name for each in fields(ArmTotals)] == names
