"""The choice of a wave's tasks, and of more for groups whose scores have no spread.

Tasks are chosen by domain and weight, then by epoch or by difficulty.

* A wave has no task twice.
* The choice depends only on the tasks, the settings, and the sizes and scores of earlier waves. A
  continued run repeats `begin_wave`, `draw` and `add_scores` for the waves of its journal, and so
  gets the same tasks.
* No domain is ever more than one task ahead of its share, unless another one lacks tasks.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from ltrain_train.errors import BadDomains
from ltrain_train.schedule.task_order import DifficultyOrder, EpochOrder, TaskOrder


class SampledTask(Protocol):
    """What the sampler reads of a task."""

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
            tasks: the tasks, with unique ids.
            seed: seed of every random choice.
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
