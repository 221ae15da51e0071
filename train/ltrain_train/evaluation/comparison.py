"""The scores of versions on the same tasks, and their paired differences from the first version.

* The score of a rollout is one number: an evaluation, or the sum that the recipe rewards. A rollout
  that counts and was not judged, such as one whose agent failed, has the score 0.
* The score of a task is the mean over its rollouts that count. A task without one, because outages
  ended all of them, has no score, and a difference leaves it out for both versions.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ltrain_instrument.identity import Mode
from ltrain_train.errors import BadRun
from ltrain_train.runs import WaveSummary, outcome_score
from ltrain_transforms.ended_rollout import EndedRollout
from ltrain_transforms.recipe import Reward
from ltrain_transforms.scores import Interval, mean, mean_interval, paired_differences

MODE: Mode = "val"
"""The mode of an evaluation's rollouts: they measure the policy and are not trained on."""
ROUNDING = 1e-9
"""The largest rounding error of a sum of floats."""
UNNAMED = "reward"
"""Name of the evaluation when a reward function returns a single number."""


@dataclass(frozen=True, slots=True)
class Metric:
    """The number that is a rollout's score."""

    name: str
    weights: Mapping[str, float]
    """Weights of evaluations by name; the score is their weighted sum."""

    def score(self, rollout: EndedRollout) -> float:
        """Return the score of a rollout."""
        values = rollout.evaluations
        return sum(weight * values.get(name, 0.0) for name, weight in self.weights.items())


def choose_metric(
    evaluations: Iterable[str], name: str | None = None, rewards: Sequence[Reward] = ()
) -> Metric:
    """Return the metric of rollouts that have these evaluations.

    Args:
        evaluations: names of the recorded evaluations.
        name: the evaluation that is the metric; None: what the recipe rewards, or the only one.
    """
    recorded = sorted(set(evaluations))
    if name is not None:
        if recorded and name not in recorded:
            raise BadRun(
                f"The reward function returns no '{name}'. Choose --metric from: "
                f"{', '.join(recorded)}."
            )
        return Metric(name, {name: 1.0})
    if outcome_score(rewards, dict.fromkeys(recorded, 0.0)) is not None:
        return _recipe_metric(rewards)
    if len(recorded) > 1:
        raise BadRun(
            f"The reward function returns several numbers: {', '.join(recorded)}. Choose one with "
            f"--metric, for example --metric {recorded[0]}."
        )
    only = recorded[0] if recorded else UNNAMED
    return Metric(only, {only: 1.0})


def _recipe_metric(rewards: Sequence[Reward]) -> Metric:
    weights: defaultdict[str, float] = defaultdict(float)
    for reward in rewards:
        if reward.evaluation is not None:
            weights[reward.evaluation] += reward.weight
    terms = (name if weight == 1 else f"{weight:g} {name}" for name, weight in weights.items())
    return Metric(" + ".join(terms), dict(weights))


@dataclass(frozen=True, slots=True)
class VersionScores:
    """The scores of one version."""

    version: str
    """NAME@VERSION."""
    wave: int
    """Number of its wave in the run of the evaluation."""
    planned: int
    """Number of rollouts that were planned."""
    summary: WaveSummary
    scores: Mapping[str, float]
    """Scores by task."""
    interval: Interval | None
    """Interval of the mean score; None without spread."""

    @classmethod
    def from_summary(
        cls,
        version: str,
        summary: WaveSummary,
        metric: Metric,
        *,
        wave: int = 0,
        planned: int,
        seed: int = 0,
    ) -> "VersionScores":
        """Return the scores of a wave's counted rollouts; `seed` is that of the interval."""
        by_task: defaultdict[str, list[float]] = defaultdict(list)
        for rollout in summary.counted:
            by_task[rollout.task].append(metric.score(rollout))
        scores = {task: sum(each) / len(each) for task, each in sorted(by_task.items())}
        interval = mean_interval([*scores.values()], seed=seed)
        return cls(version, wave, planned, summary, scores, interval)

    @property
    def mean(self) -> float | None:
        """The mean score over the tasks; None if no task has one."""
        return mean([*self.scores.values()])

    @property
    def failed(self) -> int:
        """Number of rollouts that the agent or the reward function failed: they score 0."""
        return len(self.summary.counted) - self.summary.outcomes.get("ok", 0)

    @property
    def left_out(self) -> int:
        """Number of rollouts without a score: outages ended them."""
        return self.planned - len(self.summary.counted)


@dataclass(frozen=True, slots=True)
class Difference:
    """The paired difference of a version from the first one."""

    changes: Mapping[str, float]
    """Differences by task, over the tasks that have a score of both versions."""
    interval: Interval | None
    """Paired interval of the mean difference; None without spread."""

    @classmethod
    def between(cls, baseline: VersionScores, other: VersionScores, seed: int = 0) -> "Difference":
        """Return the difference of `other` from `baseline`."""
        changes = paired_differences(baseline.scores, other.scores)
        return cls(changes, mean_interval([*changes.values()], seed=seed))

    @property
    def mean(self) -> float | None:
        """The mean difference; None if no task has a score of both versions."""
        return mean([*self.changes.values()])

    def largest(self, count: int) -> list[tuple[str, float]]:
        """Return the `count` tasks that changed most, worse ones before better ones of equal size.

        Tasks without a change are left out.
        """
        changed = [(task, change) for task, change in self.changes.items() if change]
        return sorted(changed, key=lambda each: (-abs(each[1]), each[1], each[0]))[:count]


@dataclass(frozen=True, slots=True)
class Threshold:
    """The requirement of `--fail-under`."""

    minimum: float
    lower_bound: bool
    """Whether the lower end of the interval counts instead of the mean."""

    def fault(self, what: str, scores: Sequence[float], interval: Interval | None) -> str:
        """Return why the mean of `scores` is below the minimum; '' if it is not.

        Where all scores are equal there is no interval, and the mean is its own lower bound.
        """
        bound, name = mean(scores), "mean"
        if bound is None:
            return f"{what} is unknown: no task has a score."
        if self.lower_bound and len(scores) == 1:
            return f"{what} has no lower bound: only one task has a score."
        if self.lower_bound and interval is not None:
            bound, name = interval.low, "lower bound"
        if bound >= self.minimum - ROUNDING:
            return ""
        return f"{what} is below --fail-under {self.minimum:g}: its {name} is {bound:.3f}."


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The scores of all versions; the first is the baseline."""

    run: str
    metric: str
    tasks: int
    samples: int
    """Rollouts of each task."""
    temperature: float
    versions: Sequence[VersionScores]
    differences: Sequence[Difference]
    """The differences of the second version and of all later versions."""

    def faults(self, threshold: Threshold | None) -> list[str]:
        """Return why the evaluation does not reach a threshold; empty if it does.

        With one version its mean score counts, with several the differences from the first one.
        """
        if threshold is None:
            return []
        first, *others = self.versions
        checked = [
            threshold.fault(
                f"The difference of {other.version} from {first.version}",
                [*each.changes.values()],
                each.interval,
            )
            for other, each in zip(others, self.differences, strict=True)
        ]
        if not others:
            what, scores = f"The score of {first.version}", [*first.scores.values()]
            checked = [threshold.fault(what, scores, first.interval)]
        return [fault for fault in checked if fault]
