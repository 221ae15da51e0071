"""A rule that rises while the outcome does not raises an alarm; healthy runs do not."""

from collections.abc import Sequence

import pytest

from ltrain_transforms.rewards import divergences

FARMED = [0.2, 0.2, 0.3, 0.7, 1.1, 2.2, 3.1, 3.6, 3.7, 3.8, 3.9, 4.0, 4.0]
OUTCOME = [0.05, 0.04, 0.1, 0.25, 0.32, 0.27, 0.11, 0.06, 0.09, 0.06, 0.0, 0.01, 0.01]


def by_wave(values: Sequence[float], first: int = 0) -> dict[int, float]:
    return dict(enumerate(values, first))


def test_a_farmed_rule_is_named_with_its_waves_and_means() -> None:
    found = divergences({"page-read": by_wave(FARMED)}, by_wave(OUTCOME))
    assert list(found) == [7, 8, 9, 10, 11]
    assert found[8] == [
        "wave 8: `page-read` rose in every wave since 3 (mean 0.70 to 3.70) while the outcome did "
        "not (mean 0.28 to 0.09): the policy may farm the rule; see docs/rules.md"
    ]


@pytest.mark.parametrize(
    ("rule", "outcome"),
    [
        ([0.0, 0.1, 0.2, 0.3, 0.4, 0.5], [0.0, 0.1, 0.2, 0.3, 0.4, 0.5]),  # both rise
        ([0.0, 0.1, 0.2, 0.3, 0.3, 0.5], [0.0] * 6),  # it does not rise in one wave
        ([0.0, 0.1, 0.2, 0.3, 0.4], [0.0] * 5),  # too few waves
        ([1e-9 * wave for wave in range(6)], [0.0] * 6),  # a potential's rounding
        ([0.5, 0.4, 0.3, 0.2, 0.1, 0.0], [0.5, 0.4, 0.3, 0.2, 0.1, 0.0]),  # both fall
    ],
)
def test_other_runs_raise_no_alarm(rule: list[float], outcome: list[float]) -> None:
    assert divergences({"a": by_wave(rule)}, by_wave(outcome)) == {}


def test_an_outcome_that_stays_at_its_floor_does_not_hide_a_rule() -> None:
    rules = {"b": by_wave([0, 1, 2, 3, 4, 5]), "a": by_wave([-0.6, -0.5, -0.4, -0.3, -0.2, -0.1])}
    found = divergences(rules, by_wave([0.0] * 6))
    assert [sentence.split("`")[1] for sentence in found[5]] == ["a", "b"]


def test_a_wave_without_the_rule_has_0_and_numbers_may_have_gaps() -> None:
    outcome = dict.fromkeys((2, 4, 6, 8, 10, 12), 0.0)
    rule = {4: 0.1, 6: 0.2, 8: 0.3, 10: 0.4, 12: 0.5}
    [sentence] = divergences({"a": rule}, outcome)[12]
    assert "since 2 (mean 0.00 to 0.50)" in sentence
