"""Means of scores with bootstrap intervals."""

import numpy as np
import pytest

from ltrain_transforms.scores import Interval, mean, mean_interval, paired_differences


def test_the_interval_of_ones_and_zeros_is_that_of_a_share() -> None:
    interval = mean_interval([1.0] * 50 + [0.0] * 50)
    assert interval is not None
    assert interval.low == pytest.approx(0.40, abs=0.015)
    assert interval.high == pytest.approx(0.60, abs=0.015)


def test_a_seed_repeats_an_interval() -> None:
    scores = [0.1, 0.4, 0.2, 0.9, 0.7]
    assert mean_interval(scores, seed=3) == mean_interval(scores, seed=3)
    assert mean_interval(scores, seed=3) != mean_interval(scores, seed=4)


@pytest.mark.parametrize("scores", [[], [0.4], [0.3] * 8])
def test_without_spread_there_is_no_interval(scores: list[float]) -> None:
    assert mean_interval(scores) is None


def test_many_tasks_need_bounded_memory() -> None:
    interval = mean_interval([0.0, 1.0] * 2_500)
    assert interval is not None
    assert interval.high - interval.low == pytest.approx(4 * 0.5 / 5_000**0.5, rel=0.1)


def test_an_interval_covers_the_mean_as_often_as_it_claims() -> None:
    generator = np.random.default_rng(0)
    intervals = [mean_interval(generator.binomial(1, 0.3, 40).tolist()) for _ in range(80)]
    covered = [each is not None and each.low <= 0.3 <= each.high for each in intervals]
    assert 0.87 <= np.mean(covered) <= 1.0


def test_a_paired_interval_is_narrower_than_two_of_their_own() -> None:
    generator = np.random.default_rng(0)
    level = generator.uniform(0, 1, 40)
    baseline = {str(task): each for task, each in enumerate(level)}
    better = {task: each + generator.normal(0.1, 0.05) for task, each in baseline.items()}
    paired = mean_interval(list(paired_differences(baseline, better).values()))
    alone = mean_interval(list(better.values()))
    assert paired is not None and alone is not None
    assert paired.low > 0
    assert paired.high - paired.low < (alone.high - alone.low) / 3


def test_only_tasks_of_both_versions_are_compared() -> None:
    assert paired_differences({"a": 1.0, "b": 0.5}, {"b": 1.0, "c": 1.0}) == {"b": 0.5}


def test_an_interval_and_a_mean_are_readable() -> None:
    assert str(Interval(-0.12345, 0.5)) == "[-0.123, 0.500]"
    assert mean([]) is None
    assert mean([1.0, 0.0]) == 0.5
