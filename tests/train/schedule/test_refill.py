"""Refill: a wave draws more tasks until enough groups have spread, or it reaches the limit."""

from hypothesis import given
from hypothesis.strategies import booleans, integers, lists

from ltrain_train.schedule import Refill


@given(integers(1, 6), integers(0, 6), lists(booleans(), min_size=12, max_size=12))
def test_a_wave_ends_with_enough_groups_or_at_the_limit(
    groups: int, limit: int, spread: list[bool]
) -> None:
    refill = Refill(groups, limit)
    scores: dict[str, list[float]] = {}
    missing = groups
    while missing:
        for _ in range(missing):
            scores[f"t{len(scores)}"] = [0.0, float(spread[len(scores)])]
        missing = refill.missing(scores)
    useful = sum(spread[: len(scores)])
    assert useful == groups or (useful < groups and len(scores) == groups + limit)
    without = refill.missing(scores | {"failed": []})
    assert without == 0


def test_a_group_without_a_score_has_no_spread() -> None:
    assert Refill(2, 9).missing({"a": [], "b": [1.0, 0.5]}) == 1
    assert Refill(2, 9).missing({"a": [1.0, 1.0], "b": [1.0]}) == 2
    assert Refill(2, 1).missing({"a": [1.0, 1.0], "b": [1.0]}) == 1
