"""The planned rollouts of a wave, before their attempts."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ltrain_instrument.identity import Identity, Mode, rollout_id
from ltrain_train.rollout.tasks import Task


@dataclass(frozen=True, slots=True)
class PlannedRollout:
    """A rollout to run: its identity without an attempt number, its task and its tries."""

    identity: Identity
    task: Task
    tries: int = 1
    """Number of the next try, counted from 1."""
    isolated: bool = False
    """Whether the next attempt gets a process to itself, because the process of one died."""

    def next_try(self, *, isolated: bool) -> "PlannedRollout":
        """Return the plan of the rollout's next try."""
        return replace(self, tries=self.tries + 1, isolated=self.isolated or isolated)


def plan_rollouts(
    run: str, mode: Mode, wave: int, tasks: Sequence[Task], rollouts_per_task: int
) -> Iterator[PlannedRollout]:
    """Yield every rollout of a wave, task by task, so that the rollouts of a group run together."""
    for task in tasks:
        for sample in range(rollouts_per_task):
            identity = Identity(
                run=run,
                task=task.id,
                domain=task.domain or None,
                wave=wave,
                sample=sample,
                rollout=rollout_id(run, mode, wave, task.id, sample),
                mode=mode,
            )
            yield PlannedRollout(identity, task)
