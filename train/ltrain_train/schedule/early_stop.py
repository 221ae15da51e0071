"""Early stop: a wave is full when enough groups have ended; the others go on into the next wave.

* A group has ended when all its rollouts have ended.
* Rollouts of the other groups are carried over: they are neither cancelled nor started again.
* Without a number of groups a wave is full when every rollout has ended.
"""

from collections import Counter
from collections.abc import Hashable

from ltrain_train.errors import BadSchedule


class EarlyStop:
    """Counts the rollouts and the ended groups of one wave, carried ones included."""

    def __init__(self, enough_groups: int | None = None) -> None:
        """Prepare a wave.

        Args:
            enough_groups: ended groups that fill the wave; None for all of them.

        Raises:
            BadSchedule: when it is below 1.
        """
        if enough_groups is not None and enough_groups < 1:
            raise BadSchedule(
                f"{enough_groups} groups are to fill a wave. Choose 1 or more, or None for all."
            )
        self._enough = enough_groups
        self._open: Counter[Hashable] = Counter()
        self._ended = 0

    @property
    def is_full(self) -> bool:
        """Whether the wave has enough groups, or nothing is left that could end."""
        return not self._open or (self._enough is not None and self._ended >= self._enough)

    def add(self, group: Hashable) -> None:
        """Add a rollout that has not ended to its group."""
        self._open[group] += 1

    def end(self, group: Hashable) -> None:
        """Record that a rollout of a group has ended, after all its tries.

        Raises:
            BadSchedule: when every rollout of the group has ended before.
        """
        if group not in self._open:
            raise BadSchedule(
                f"Group {group!r} has no rollout that has not ended. Add each rollout once."
            )
        self._open[group] -= 1
        if not self._open[group]:
            del self._open[group]
            self._ended += 1
