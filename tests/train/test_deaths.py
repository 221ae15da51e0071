"""Three deaths within ten minutes are too many; three in a longer time are not."""

import pytest

from ltrain_train import deaths
from ltrain_train.deaths import RestartLimit


def test_three_deaths_are_too_many() -> None:
    counted = RestartLimit()
    assert [counted.record_death() for _ in range(deaths.MAX_DEATHS)] == [False, False, True]


def test_deaths_that_are_long_past_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deaths, "DEATH_WINDOW", 0.0)
    counted = RestartLimit()
    assert [counted.record_death() for _ in range(4)] == [False] * 4
