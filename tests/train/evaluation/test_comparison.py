"""Scores of versions, paired differences, the choice of a metric and `--fail-under`."""

import pytest
from tests.train.runs.ends import ended

from ltrain_train.errors import BadRun
from ltrain_train.evaluation.comparison import (
    Difference,
    Evaluation,
    Threshold,
    VersionScores,
    choose_metric,
)
from ltrain_train.runs.wave_summary import WaveSummary
from ltrain_transforms.recipe import CallReward, EvaluationReward

METRIC = choose_metric(["reward"])


def scores_of(version: str, *rollouts: tuple[str, float | None], planned: int = 0) -> VersionScores:
    """Return the scores of rollouts: their task and reward, or None for an agent that failed."""
    summary = WaveSummary(
        [
            ended(task, "error") if reward is None else ended(task, "ok", reward=reward)
            for task, reward in rollouts
        ]
    )
    return VersionScores.from_summary(version, summary, METRIC, planned=planned or len(rollouts))


def evaluation_of(*versions: VersionScores) -> Evaluation:
    first, *others = versions
    return Evaluation(
        run="eval",
        metric="reward",
        tasks=4,
        samples=1,
        temperature=0.0,
        versions=versions,
        differences=[Difference.between(first, other) for other in others],
    )


def test_the_samples_of_a_task_are_averaged_and_a_failed_agent_scores_0() -> None:
    scores = scores_of("sql@1", ("a", 1.0), ("a", 0.0), ("a", 0.5), ("b", 1.0), ("b", None))
    assert scores.scores == {"a": 0.5, "b": 0.5}
    assert (scores.mean, scores.interval) == (0.5, None)  # both tasks have one score
    assert (scores.failed, scores.left_out) == (1, 0)


def test_a_task_that_outages_ended_is_left_out_of_the_difference() -> None:
    first = scores_of("sql@0", ("a", 0.0), ("b", 1.0), ("c", 0.0))
    other = scores_of("sql@1", ("a", 1.0), ("c", 0.5), planned=3)
    difference = Difference.between(first, other)
    assert difference.changes == {"a": 1.0, "c": 0.5}
    assert (difference.mean, other.left_out) == (0.75, 1)
    assert Difference.between(first, scores_of("sql@2", planned=3)).mean is None


def test_tasks_are_ordered_by_how_much_they_changed() -> None:
    first = scores_of("sql@0", ("a", 0.0), ("b", 1.0), ("c", 0.5), ("d", 0.5))
    other = scores_of("sql@1", ("a", 1.0), ("b", 0.0), ("c", 0.5), ("d", 0.75))
    difference = Difference.between(first, other)
    assert difference.largest(9) == [("b", -1.0), ("a", 1.0), ("d", 0.25)]
    assert difference.largest(1) == [("b", -1.0)]


def test_the_metric_is_what_the_recipe_rewards_or_the_only_number() -> None:
    rewards = (
        EvaluationReward(name="answer", evaluation="reward"),
        EvaluationReward(name="style", evaluation="tidy", weight=-0.5),
        CallReward(name="rule", on="tool", value="-1"),
    )
    metric = choose_metric(["reward", "tidy", "other"], None, rewards)
    assert metric.name == "reward + -0.5 tidy"
    assert metric.score(ended("a", "ok", reward=1.0, tidy=1.0, other=9.0)) == 0.5
    assert metric.score(ended("a", "error")) == 0.0
    assert choose_metric(["other"], None, rewards).name == "other"
    assert choose_metric(["reward", "other"], "other", rewards).weights == {"other": 1.0}
    assert choose_metric([]).name == "reward"
    with pytest.raises(BadRun, match=r"several numbers: other, tidy\. Choose one with --metric"):
        choose_metric(["tidy", "other"])
    with pytest.raises(BadRun, match=r"no 'true'\. Choose --metric from: other, tidy\."):
        choose_metric(["tidy", "other"], "true")


def test_one_version_is_held_to_its_score() -> None:
    evaluation = evaluation_of(scores_of("sql@1", ("a", 1.0), ("b", 0.0), ("c", 1.0), ("d", 1.0)))
    assert evaluation.faults(None) == []
    assert evaluation.faults(Threshold(0.75, lower_bound=False)) == []
    [mean] = evaluation.faults(Threshold(0.8, lower_bound=False))
    assert mean == "The score of sql@1 is below --fail-under 0.8: its mean is 0.750."
    [bound] = evaluation.faults(Threshold(0.75, lower_bound=True))
    assert bound.startswith(
        "The score of sql@1 is below --fail-under 0.75: its lower bound is 0.25"
    )


def test_several_versions_are_held_to_their_differences() -> None:
    first = scores_of("sql@0", ("a", 0.5), ("b", 0.5), ("c", 0.5), ("d", 0.5))
    worse = scores_of("sql@1", ("a", 0.5), ("b", 0.5), ("c", 0.5), ("d", 0.25))
    better = scores_of("sql@2", ("a", 0.75), ("b", 0.75), ("c", 0.75), ("d", 0.75))
    [fault] = evaluation_of(first, better, worse).faults(Threshold(0, lower_bound=False))
    assert fault == (
        "The difference of sql@1 from sql@0 is below --fail-under 0: its mean is -0.062."
    )
    # equal differences have no interval, and their mean is the lower bound
    assert evaluation_of(first, better).faults(Threshold(0.25, lower_bound=True)) == []
    assert evaluation_of(first, first).faults(Threshold(0, lower_bound=True)) == []
    tenths = scores_of("sql@3", ("a", 0.1), ("b", 0.2), ("c", 0.3), ("d", 0.1))
    others = scores_of("sql@4", ("a", 0.3), ("b", 0.1), ("c", 0.1), ("d", 0.2))
    assert evaluation_of(tenths, others).faults(Threshold(0, lower_bound=False)) == []


def test_what_is_unknown_does_not_pass() -> None:
    one, none = scores_of("sql@0", ("a", 0.5)), scores_of("sql@1", planned=4)
    [alone] = evaluation_of(one).faults(Threshold(0, lower_bound=True))
    assert alone == "The score of sql@0 has no lower bound: only one task has a score."
    [unknown] = evaluation_of(one, none).faults(Threshold(-9, lower_bound=False))
    assert unknown == "The difference of sql@1 from sql@0 is unknown: no task has a score."
