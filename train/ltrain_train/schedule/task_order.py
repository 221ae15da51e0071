"""Orders of tasks: by epochs, or by the difficulty that earlier waves have shown."""

import random
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

MIN_WEIGHT = 0.1
"""Weight of the task whose mean score is farthest from the target: it is sampled now and then,
because a later policy may have another score."""


class TaskOrder(Protocol):
    """Returns the ids of tasks one by one; a task that is excluded stays so until the next wave."""

    def begin_wave(self, wave: int, scores: Mapping[str, float]) -> None:
        """Begin a wave; `scores` has the mean score of each task in earlier waves."""

    def next(self, excluded: Collection[str]) -> str | None:
        """Return the next task that is not excluded; None if every task is."""


class EpochOrder:
    """Every task once in an epoch, in a new order in each epoch."""

    def __init__(self, ids: Sequence[str], seed: str) -> None:
        """Prepare the order of `ids`."""
        self._ids, self._seed, self._epoch = ids, seed, 0
        self._waiting: deque[str] = deque()

    def begin_wave(self, wave: int, scores: Mapping[str, float]) -> None:
        """Change nothing: an epoch goes on in the next wave."""

    def next(self, excluded: Collection[str]) -> str | None:
        """Return the first waiting task that is not excluded; those before it keep their place."""
        if all(task in excluded for task in self._ids):
            return None
        while (task := self._first(excluded)) is None:
            order = random.Random(f"{self._seed}/{self._epoch}")
            self._waiting += [
                self._ids[index] for index in order.sample(range(len(self._ids)), len(self._ids))
            ]
            self._epoch += 1
        self._waiting.remove(task)
        return task

    def _first(self, excluded: Collection[str]) -> str | None:
        return next((task for task in self._waiting if task not in excluded), None)


class DifficultyOrder:
    """Tasks at random; those whose mean score is near the target are more likely.

    A task without a score has the weight 1. Sampling is without replacement (Efraimidis and
    Spirakis 2006: the largest of u ** (1 / weight)).
    """

    def __init__(self, ids: Sequence[str], seed: str, target: float) -> None:
        """Prepare the order of `ids`."""
        self._ids, self._seed, self._target = ids, seed, target
        self._waiting: deque[str] = deque()

    def begin_wave(self, wave: int, scores: Mapping[str, float]) -> None:
        """Sort the tasks by random keys, which depend on the seed, the wave and the scores."""
        weights = difficulty_weights(self._ids, scores, self._target)
        draw = random.Random(f"{self._seed}/{wave}")
        keys = {task: draw.random() ** (1 / weights[task]) for task in self._ids}
        self._waiting = deque(sorted(self._ids, key=lambda task: -keys[task]))

    def next(self, excluded: Collection[str]) -> str | None:
        """Return the first task of the wave's order that is not excluded."""
        while self._waiting and self._waiting[0] in excluded:
            self._waiting.popleft()
        return self._waiting[0] if self._waiting else None


def difficulty_weights(
    ids: Sequence[str], scores: Mapping[str, float], target: float
) -> dict[str, float]:
    """Return the weight of each task: from 1 at the target to `MIN_WEIGHT` at the farthest."""
    distances = {task: abs(scores[task] - target) for task in ids if task in scores}
    farthest = max(distances.values(), default=0.0) or 1.0
    return {task: 1 - (1 - MIN_WEIGHT) * distances.get(task, 0.0) / farthest for task in ids}
