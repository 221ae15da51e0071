"""Warm workers: processes that imported the agent once and run many rollouts at a time.

A worker that dies, or that must be ended because a rollout in it ran past its deadline, is
replaced. Its neighbours in a worker that was ended are tried again. What ran beside others in a
worker that died is tried again with a worker to itself: then its death is its own.
"""

import threading
import time
from collections.abc import Sequence
from pathlib import Path

from ltrain_instrument.errors import LtrainError
from ltrain_train.process import ChildDied, Children
from ltrain_train.rollout.attempt import COUNTING, Attempt, Ending, Outcome
from ltrain_train.rollout.death import of_death
from ltrain_train.rollout.lane import Ended
from ltrain_train.rollout.pipe import WorkerProcess
from ltrain_train.rollout.reference import BadReference

PATIENCE = 1.0
"""Seconds that a worker has to cancel a coroutine; a thread it cannot, and has none."""


class WorkerFailed(LtrainError, RuntimeError):
    """A worker ended before it could run a rollout."""


class WarmWorkers:
    """A lane of `workers` processes with `concurrency` rollouts each; safe to use from threads.

    The guards of its processes keep the descriptors `held` open until all of them have ended.
    """

    def __init__(
        self,
        agent: str,
        *,
        folder: Path,
        environ: dict[str, str | None],
        logs: Path,
        workers: int,
        concurrency: int,
        ended: Ended,
        held: Sequence[int] = (),
    ) -> None:
        self._agent, self._folder, self._environ, self._logs = agent, folder, environ, logs
        self._concurrency = concurrency
        self._ended = ended
        self._children = Children(held)
        self._changed = threading.Condition()
        self._started = 0
        self._broken: LtrainError | None = None
        self._closed = False
        self._workers: list[WorkerProcess] = []
        for _ in range(workers):
            self._workers.append(self._start())

    def wait_ready(self, timeout: float) -> None:
        """Wait until one worker has imported the agent.

        Raises:
            BadReference: when it cannot be imported.
            WorkerFailed: when the worker dies of it, or takes longer than `timeout`.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._broken or self._any_ready(), timeout)
            if self._broken is not None:
                raise self._broken
            if not self._any_ready():
                raise WorkerFailed(
                    f"No worker has imported '{self._agent}' after {timeout:g} s. "
                    f"Their logs are in {self._logs}."
                )

    def room(self, *, alone: bool = False) -> int:
        """Count the attempts that can start now, or those that can have a worker to themselves."""
        with self._changed:
            if self._broken is not None:
                raise self._broken
            free = self._free(alone=alone)
            return len(free) if alone else sum(map(self._slots, free))

    def submit(self, attempt: Attempt) -> None:
        """Start an attempt in the ready worker that has the fewest.

        A worker that had room may have been replaced since: without another the attempt ends.
        """
        with self._changed:
            if free := self._free(alone=attempt.alone):
                max(free, key=self._slots).send(attempt)
            else:
                reason = "its worker was replaced before it began"
                self._ended(attempt, Ending(Outcome.INFRA, reason))

    def expire(self) -> None:
        """Replace every worker with a rollout past its deadline."""
        now = time.time_ns()
        with self._changed:
            for worker in list(self._workers):
                if late := worker.late(now):
                    reason = "its worker was ended for another's deadline"
                    flying = self._replace(worker, late)
                    for attempt in flying:
                        self._ended(attempt, Ending(Outcome.INFRA, reason))
                    worker.stop()

    def close(self) -> None:
        """End every worker."""
        with self._changed:
            self._closed = True
            for worker in self._workers:
                worker.stop()
        self._children.stop()

    def _any_ready(self) -> bool:
        return any(worker.ready for worker in self._workers)

    def _free(self, *, alone: bool) -> list[WorkerProcess]:
        ready = [worker for worker in self._workers if worker.ready and not worker.taken]
        return [each for each in ready if self._slots(each) > 0 and not (alone and each.flying)]

    def _slots(self, worker: WorkerProcess) -> int:
        return self._concurrency - len(worker.flying)

    def _start(self) -> WorkerProcess:
        self._started += 1
        worker = WorkerProcess(
            name=f"worker-{self._started}",
            agent=self._agent,
            folder=self._folder,
            environ=self._environ,
            log=self._logs / f"worker-{self._started}.log",
            concurrency=self._concurrency,
            children=self._children,
        )
        worker.listen(said=self._said, gone=self._gone)
        return worker

    def _said(self, worker: WorkerProcess, message: dict[str, object]) -> None:
        with self._changed:
            if worker.ready:  # from here on the agent's code may write, too
                self._hear(worker, message)
            elif worker not in self._workers:  # replaced: nobody waits for what it writes
                return
            elif "broken" in message:
                self._broken = BadReference(str(message["broken"]))
            elif "ready" in message:
                worker.patience = PATIENCE if message.get("cancels") else 0.0
                worker.ready = True
            self._changed.notify_all()

    def _hear(self, worker: WorkerProcess, message: dict[str, object]) -> None:
        attempt = worker.flying.pop(str(message.get("id")), None)
        if attempt is None:
            return
        outcome, reason = str(message.get("outcome")), str(message.get("reason", ""))
        if outcome not in COUNTING:
            outcome, reason = Outcome.ERROR, f"its worker sent '{outcome}', which is no outcome"
        self._ended(attempt, Ending(Outcome(outcome), reason, message.get("result")))
        if message.get("kills"):
            self._give_up(worker, f"attempt {attempt.id} ended its worker")

    def _give_up(self, worker: WorkerProcess, reason: str) -> None:
        for attempt in self._replace(worker, set()):
            self._ended(attempt, Ending(Outcome.INFRA, reason, died=True))
        worker.stop()

    def _gone(self, worker: WorkerProcess) -> None:
        with self._changed:
            worker.stop()
            for attempt in worker.late_attempts:
                reason = f"still running after {attempt.deadline:g} s"
                self._ended(attempt, Ending(Outcome.TIMEOUT, reason))
            if self._closed or worker not in self._workers:
                return
            if worker.ready:
                dead = self._replace(worker, set())
                for attempt in dead:
                    shared = attempt.id in worker.shared
                    self._ended(attempt, of_death(attempt, "its worker died", shared=shared))
            elif self._broken is None:
                self._broken = WorkerFailed(
                    f"A worker ended before it had imported '{self._agent}'. "
                    f"The last lines of {worker.log}:\n{worker.tail()}"
                )
            self._changed.notify_all()

    def _replace(self, worker: WorkerProcess, late: set[str]) -> list[Attempt]:
        """Start another worker in its place, and return what ran in it, but for the late."""
        # those that are late end with the process, after its last spans
        worker.late_attempts = [worker.flying.pop(name) for name in late]
        flying, worker.ready = list(worker.flying.values()), False
        worker.flying.clear()
        try:
            self._workers[self._workers.index(worker)] = self._start()
        except (OSError, ChildDied) as error:
            self._broken = WorkerFailed(f"No worker can be started: {error}")
        return flying
