"""When a run ends before its last update."""

import pytest

from ltrain_train.schedule import StopRule


@pytest.mark.parametrize(
    ("scores", "since"),
    [([], 0), ([0.5], 0), ([0.1, 0.5, 0.4], 1), ([0.5, 0.5, 0.5], 2), ([0.9, 0.1, 0.2, 0.3], 3)],
)
def test_a_run_ends_after_validations_without_a_better_score(
    scores: list[float], since: int
) -> None:
    for patience in range(1, 5):
        reason = StopRule(patience=patience).reason(scores, tokens=0, minutes=0)
        assert bool(reason) == (since >= patience)
    assert StopRule().reason(scores, tokens=10**9, minutes=1e9) == ""


def test_a_run_ends_at_a_budget() -> None:
    rule = StopRule(tokens=100, minutes=2.5)
    assert rule.reason([], tokens=99, minutes=2.4) == ""
    assert "trained on 100 tokens" in rule.reason([], tokens=100, minutes=0)
    assert "train.max_minutes is 2.5" in rule.reason([], tokens=0, minutes=2.5)
