"""Means of scores with 95 % bootstrap intervals; tasks are the unit that is resampled.

* Samples of one task are not independent, so they are averaged first: one score a task.
* A difference is paired: task by task, over the tasks that both versions have.
* Without spread, or with one task, there is no interval. None says so; an interval of width zero
  would claim certainty.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

LEVEL = 0.95
"""Probability that an interval covers the mean of all such tasks."""
RESAMPLES = 10_000
"""Resamples of the tasks; the ends of an interval then repeat to about 1 % of its width."""
BLOCK = 1 << 22
"""Maximum numbers drawn at a time: 32 MiB."""
FEW_TASKS = 20
"""With fewer tasks, a bootstrap interval is notably too narrow."""


@dataclass(frozen=True, slots=True)
class Interval:
    """The ends of an interval."""

    low: float
    high: float

    def __str__(self) -> str:
        return f"[{self.low:.3f}, {self.high:.3f}]"


def mean(scores: Sequence[float]) -> float | None:
    """Return the mean of `scores`; None if there are none."""
    return float(np.mean(scores)) if len(scores) else None


def mean_interval(scores: Sequence[float], *, seed: int = 0) -> Interval | None:
    """Return the bootstrap interval of the mean of `scores`, one a task.

    Return None if there are fewer than two scores, or if all are equal.
    """
    values = np.asarray(scores, dtype=np.float64)
    if len(values) < 2 or np.ptp(values) == 0:
        return None
    generator = np.random.default_rng(seed)
    step = max(1, BLOCK // len(values))
    means = [
        generator.choice(values, (min(step, RESAMPLES - first), len(values))).mean(axis=1)
        for first in range(0, RESAMPLES, step)
    ]
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(np.concatenate(means), [tail, 1 - tail])
    return Interval(float(low), float(high))


def paired_differences(
    baseline: Mapping[str, float], scores: Mapping[str, float]
) -> dict[str, float]:
    """Return `scores` minus `baseline` by task, for the tasks that both have."""
    return {task: scores[task] - baseline[task] for task in baseline if task in scores}
