"""The restart limit: three deaths within ten minutes reach it."""

import pytest

from ltrain_train.processes import children
from ltrain_train.processes.children import RestartLimit


def test_three_deaths_reach_the_limit() -> None:
    counted = RestartLimit()
    assert [counted.record_death() for _ in range(children.MAX_DEATHS)] == [False, False, True]


def test_deaths_outside_the_window_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "DEATH_WINDOW", 0.0)
    counted = RestartLimit()
    assert [counted.record_death() for _ in range(4)] == [False] * 4
