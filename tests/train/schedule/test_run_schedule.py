"""Whether waves overlap, and when a run ends before its last update."""

import pytest

from ltrain_train.schedule import ModeTrial, StopRule


@pytest.mark.parametrize(
    ("seconds", "ahead", "choice"),
    [
        ([60, 10, 12, 30, 8, 8], 1, '11.0 s with "sync" and 8.0 s with "async"; the run goes on'),
        ([1, 10, 10, 1, 9.6, 9.6], 0, 'goes on with "sync"'),
    ],
)
def test_the_faster_mode_goes_on_unless_it_gains_little(
    seconds: list[float], ahead: int, choice: str
) -> None:
    trial = ModeTrial("auto")
    modes, sentences = list[int](), list[str]()
    for each in seconds:
        modes.append(trial.waves_ahead)
        sentences.append(trial.add(each))
    assert modes == [0, 0, 0, 1, 1, 1]
    assert sentences[:-1] == [""] * 5 and choice in sentences[-1]
    for each in (1.0, 99.0):
        assert (trial.waves_ahead, trial.add(each)) == (ahead, "")


@pytest.mark.parametrize(("mode", "ahead"), [("sync", 0), ("async", 1)])
def test_a_mode_that_is_set_needs_no_trial(mode: str, ahead: int) -> None:
    trial = ModeTrial(mode)
    for seconds in range(9):
        assert (trial.waves_ahead, trial.add(seconds)) == (ahead, "")


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
