"""The rollouts of a wave, before and between their attempts."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ltrain_instrument.identity import Identity, Mode, rollout_id
from ltrain_train.rollout.tasks import Task


@dataclass(frozen=True, slots=True)
class Visit:
    """A rollout to be made: identity without attempt, task, and how often it was tried."""

    identity: Identity
    task: Task
    tries: int = 1
    alone: bool = False
    """Whether its process is its own: an earlier try died."""

    def again(self, *, alone: bool) -> "Visit":
        """Return the visit for its next try."""
        return replace(self, tries=self.tries + 1, alone=self.alone or alone)


def visits(
    run: str, mode: Mode, wave: int, tasks: Sequence[Task], per_task: int
) -> Iterator[Visit]:
    """Name every rollout of a wave: task after task, so that a group runs together."""
    for task in tasks:
        for sample in range(per_task):
            identity = Identity(
                run=run,
                task=task.id,
                domain=task.domain or None,
                wave=wave,
                sample=sample,
                rollout=rollout_id(run, mode, wave, task.id, sample),
                mode=mode,
            )
            yield Visit(identity, task)
