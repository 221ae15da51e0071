"""Summarizes a wave: the outcomes and evaluations of its rollouts, and their means."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ltrain_train.workers import COUNTED_OUTCOMES, Outcome
from ltrain_transforms.ended_rollout import EndedRollout
from ltrain_transforms.recipe import Reward


@dataclass(frozen=True, slots=True)
class WaveSummary:
    """The ended rollouts of one wave, each with its last attempt."""

    ended: Sequence[EndedRollout]

    @property
    def rollouts(self) -> int:
        """Number of rollouts."""
        return len(self.ended)

    @property
    def outcomes(self) -> dict[str, int]:
        """Number of rollouts by outcome."""
        return dict(Counter(each.outcome for each in self.ended))

    @property
    def counted(self) -> list[EndedRollout]:
        """The rollouts that count: the agent is responsible for how they ended."""
        return [each for each in self.ended if each.outcome in COUNTED_OUTCOMES]

    @property
    def failures(self) -> list[EndedRollout]:
        """The rollouts that are not ok."""
        return [each for each in self.ended if each.outcome != Outcome.OK]

    @property
    def evaluations(self) -> dict[str, float]:
        """Mean of each evaluation over the counted rollouts; a missing one counts as 0."""
        counted, sums = self.counted, defaultdict[str, float](float)
        for rollout in counted:
            for name, value in rollout.evaluations.items():
                sums[name] += value
        return {name: total / len(counted) for name, total in sorted(sums.items())}


def outcome_score(rewards: Sequence[Reward], evaluations: Mapping[str, float]) -> float | None:
    """Return the sum of the rewarded evaluations by their weights; None if there are none."""
    values = [
        reward.weight * evaluations[reward.evaluation]
        for reward in rewards
        if reward.evaluation is not None and reward.evaluation in evaluations
    ]
    return sum(values) if values else None


def group_scores(
    rewards: Sequence[Reward], counted: Sequence[EndedRollout]
) -> dict[str, list[float]]:
    """Return the scores of each task's rollouts; one without the rewarded evaluations has 0."""
    groups: defaultdict[str, list[float]] = defaultdict(list)
    for rollout in counted:
        groups[rollout.task].append(outcome_score(rewards, rollout.evaluations) or 0.0)
    return dict(sorted(groups.items()))


def task_scores(rewards: Sequence[Reward], counted: Sequence[EndedRollout]) -> dict[str, float]:
    """Return the mean score of each task."""
    groups = group_scores(rewards, counted)
    return {task: sum(scores) / len(scores) for task, scores in groups.items()}
