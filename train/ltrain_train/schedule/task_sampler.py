"""The choice of a wave's tasks, and of more for groups whose scores have no spread.

Tasks are chosen by domain and weight, then by epoch or by difficulty.

* A wave has no task twice.
* The choice depends only on the tasks, the settings, and the sizes and scores of earlier waves. A
  continued run repeats `begin_wave`, `draw` and `add_scores` for the waves of its journal, and so
  gets the same tasks.
* No domain is ever more than one task ahead of its share, unless another one lacks tasks.
"""

import random
from collections import defaultdict, deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from ltrain_train.errors import BadDomains


class SampledTask(Protocol):
    """The fields of a task that the sampler reads."""

    @property
    def id(self) -> str:
        """The task's unique id."""

    @property
    def domain(self) -> str:
        """The task's domain; '' for none."""


T = TypeVar("T", bound=SampledTask)


class TaskSampler(Generic[T]):
    """Draws the tasks of one wave after the other."""

    def __init__(
        self,
        tasks: Sequence[T],
        *,
        seed: int,
        domains: Mapping[str, float] | None = None,
        target_score: float | None = None,
    ) -> None:
        """Prepare the sampler.

        Args:
            domains: weight of each domain; empty or None: domains are not looked at.
            target_score: mean score of the most useful tasks; None: all are drawn once an epoch.

        Raises:
            BadDomains: when the domains of the tasks and of the weights differ.
        """
        self._tasks = {task.id: task for task in tasks}
        self._weights = {name: weight for name, weight in (domains or {"": 1.0}).items() if weight}
        check_domains(tasks, domains or {})
        self._orders: dict[str, TaskOrder] = {}
        for name in self._weights:
            ids = [task.id for task in tasks if not domains or task.domain == name]
            lane = f"{seed}/{name}" if domains else str(seed)
            self._orders[name] = (
                EpochOrder(ids, lane)
                if target_score is None
                else DifficultyOrder(ids, lane, target_score)
            )
        self._drawn = dict.fromkeys(self._weights, 0)
        self._scores: defaultdict[str, list[float]] = defaultdict(list)
        self._wave, self._wave_tasks = -1, set[str]()

    def begin_wave(self) -> None:
        """Begin the next wave."""
        self._wave += 1
        self._wave_tasks = set()
        means = {task: sum(scores) / len(scores) for task, scores in self._scores.items()}
        for order in self._orders.values():
            order.begin_wave(self._wave, means)

    def draw(self, count: int) -> list[T]:
        """Return at most `count` more tasks of the wave; fewer if it has all tasks then."""
        ids = [task for _ in range(count) if (task := self._draw()) is not None]
        return [self._tasks[task] for task in ids]

    def add_scores(self, scores: Mapping[str, float]) -> None:
        """Add the scores of a wave's tasks, for the waves after it."""
        for task, score in scores.items():
            self._scores[task].append(score)

    def _draw(self) -> str | None:
        """Return a task of the domain that is farthest behind its share and has one."""
        total, share = sum(self._drawn.values()) + 1, sum(self._weights.values())
        behind = {
            name: weight / share * total - self._drawn[name]
            for name, weight in self._weights.items()
        }
        for name in sorted(behind, key=lambda name: -behind[name]):
            task = self._orders[name].next(self._wave_tasks)
            if task is not None:
                self._drawn[name] += 1
                self._wave_tasks.add(task)
                return task
        return None


def check_domains(tasks: Sequence[SampledTask], domains: Mapping[str, float]) -> None:
    """Check that each domain of the tasks has a weight, and each weighted domain a task.

    Raises:
        BadDomains: when one has not, unless there are no weights at all.
    """
    if not domains:
        return
    of_tasks = {task.domain for task in tasks}
    names = ", ".join(f"'{name}'" for name in sorted(of_tasks))
    for name in sorted(of_tasks - domains.keys()):
        raise BadDomains(
            f"The tasks' domain '{name}' has no weight. The tasks' domains are {names}: name each "
            "in [rollout] domains, with the weight 0 to leave its tasks out."
        )
    for name in sorted(name for name in domains.keys() - of_tasks if domains[name]):
        raise BadDomains(
            f"[rollout] domains gives a weight to '{name}', and no task has this domain. The "
            f"tasks' domains are {names}: correct the name, or remove it."
        )


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
