"""How many more tasks a wave needs, because the rewards of some groups have no spread."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Refill:
    """The groups that a wave needs, and how many more it may run to get them."""

    groups: int
    """Groups with spread that are enough."""
    limit: int
    """Most tasks that the wave draws beyond `groups`."""

    def missing(self, scores: Mapping[str, Sequence[float]]) -> int:
        """Return how many more tasks to draw.

        Args:
            scores: the scores of the rollouts of each task that the wave has drawn.
        """
        drawn, useful = len(scores), sum(map(has_spread, scores.values()))
        return max(0, min(self.groups - useful, self.groups + self.limit - drawn))


def has_spread(scores: Sequence[float]) -> bool:
    """Return whether two scores of a group differ."""
    return len(set(scores)) > 1
