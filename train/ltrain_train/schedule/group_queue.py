"""The queue of rollouts that wait for a free slot, group by group.

* A group's rollouts start before those of the next group, so that they share the server's prefix
  cache and end together. A rollout that is tried again returns to its group's place.
* A rollout that needs a process of its own waits apart, and blocks no other.
"""

from collections.abc import Callable, Hashable, Iterable
from heapq import heappop, heappush
from typing import Generic, TypeVar

T = TypeVar("T")


class GroupQueue(Generic[T]):
    """Rollouts in the order of their groups, and within a group in the order of arrival."""

    def __init__(
        self,
        rollouts: Iterable[T],
        *,
        group: Callable[[T], Hashable],
        isolated: Callable[[T], bool] = lambda rollout: False,
    ) -> None:
        """Add the rollouts; the order in which their groups appear is the order of the groups."""
        self._group, self._isolated = group, isolated
        self._places: dict[Hashable, int] = {}
        self._heaps: dict[bool, list[tuple[int, int, T]]] = {False: [], True: []}
        self._arrivals = 0
        for rollout in rollouts:
            self.push(rollout)

    def __len__(self) -> int:
        return sum(map(len, self._heaps.values()))

    def push(self, rollout: T) -> None:
        """Add a rollout to its group; a new group is the last."""
        place = self._places.setdefault(self._group(rollout), len(self._places))
        self._arrivals += 1
        # the number of arrivals is unique, so rollouts are never compared
        heappush(self._heaps[self._isolated(rollout)], (place, self._arrivals, rollout))

    def pop(self, *, isolated: bool = False) -> T | None:
        """Remove and return the next rollout of this kind; None if there is none."""
        heap = self._heaps[isolated]
        return heappop(heap)[2] if heap else None

    def has(self, *, isolated: bool = False) -> bool:
        """Return whether a rollout of this kind waits."""
        return bool(self._heaps[isolated])
