"""A pool of worker processes that import the agent once and run many rollouts at a time.

* The pool replaces a worker that died, or in which an attempt exceeded its time limit.
* A timeout ends no other attempt: a coroutine is cancelled, and the worker of a thread, which
  cannot be cancelled, gets no further attempts and ends after the others in it. Only if the worker
  does not respond is it ended at once, and the others are tried again.
* If the worker died, or was ended because it printed too much, while several attempts ran in it,
  each is tried again with a worker to itself, so that a second death has one cause.
"""

import threading
import time
from collections.abc import Collection

from ltrain_instrument.errors import LtrainError
from ltrain_train.processes import ChildDied, Children
from ltrain_train.workers.attempt import (
    COUNTED_OUTCOMES,
    Attempt,
    AttemptResult,
    Outcome,
    result_of_death,
)
from ltrain_train.workers.executor import AgentProcesses, OnEnd
from ltrain_train.workers.output import describe_excess
from ltrain_train.workers.reference import BadReference
from ltrain_train.workers.worker_process import WorkerProcess


class WorkerFailed(LtrainError, RuntimeError):
    """A worker ended before it could run an attempt."""


class WorkerPool:
    """Runs attempts in warm workers, `concurrency` at a time in each; thread-safe."""

    def __init__(self, processes: AgentProcesses, on_end: OnEnd) -> None:
        self._processes, self._on_end = processes, on_end
        self._children = Children(processes.keep_open)
        self._changed = threading.Condition()
        self._started = 0
        self._failure: LtrainError | None = None
        self._closed = False
        self._workers: list[WorkerProcess] = []
        self._retiring: list[WorkerProcess] = []
        """Replaced workers that still run attempts beside one that exceeded its time limit."""
        for _ in range(processes.workers):
            self._workers.append(self._start())

    def wait_ready(self, timeout: float) -> None:
        """Wait until one worker has imported the agent."""
        with self._changed:
            self._changed.wait_for(lambda: self._failure or self._is_any_ready(), timeout)
            if self._failure is not None:
                raise self._failure
            if not self._is_any_ready():
                raise WorkerFailed(
                    f"No worker has imported '{self._processes.agent}' after {timeout:g} s. "
                    f"Their logs are in {self._processes.logs}."
                )

    def free_slots(self, *, isolated: bool = False) -> int:
        """Return how many attempts can start now; if `isolated`, each in a worker to itself."""
        with self._changed:
            if self._failure is not None:
                raise self._failure
            candidates = self._workers_with_room(isolated=isolated)
            if isolated:
                return len(candidates)
            retiring = sum(len(worker.in_flight) for worker in self._retiring)
            return max(0, sum(map(self._free_slots, candidates)) - retiring)

    def submit(self, attempt: Attempt) -> None:
        """Start an attempt in the ready worker with the most free slots.

        A worker with a free slot may have been replaced meanwhile; without another the attempt ends
        as `infra`.
        """
        with self._changed:
            if candidates := self._workers_with_room(isolated=attempt.isolated):
                max(candidates, key=self._free_slots).send(attempt)
            else:
                reason = "its worker was replaced before it began"
                self._on_end(attempt, AttemptResult(Outcome.INFRA, reason))

    def time_out(self, attempts: Collection[str]) -> None:
        """Cancel these attempts, or replace each worker that does not cancel one of them."""
        with self._changed:
            for worker in [*self._workers, *self._retiring]:
                overdue = worker.cancel(attempts)
                if overdue and overdue <= worker.uncancellable and overdue < set(worker.in_flight):
                    self._retire(worker, overdue)
                elif overdue:
                    reason = "its worker did not respond at the timeout of another attempt"
                    in_flight = self._replace(worker, overdue)
                    for attempt in in_flight:
                        self._on_end(attempt, AttemptResult(Outcome.INFRA, reason))
                    worker.stop()

    def close(self) -> None:
        """End every worker."""
        with self._changed:
            self._closed = True
            for worker in [*self._workers, *self._retiring]:
                worker.stop()
        self._children.stop()

    def _is_any_ready(self) -> bool:
        return any(worker.ready for worker in self._workers)

    def _workers_with_room(self, *, isolated: bool) -> list[WorkerProcess]:
        ready = [worker for worker in self._workers if worker.ready and not worker.is_isolated]
        return [
            each
            for each in ready
            if self._free_slots(each) > 0 and not (isolated and each.in_flight)
        ]

    def _free_slots(self, worker: WorkerProcess) -> int:
        """Return how many attempts a worker can start.

        Those whose agent has returned leave room while their spans are sent. There are at most half
        of `concurrency` more of them, so that a slow collector does not pile them up, and none in a
        worker of one attempt: its death is never another attempt's.
        """
        working = len(worker.in_flight) - len(worker.returned)
        most = self._processes.concurrency
        return min(most - working, most * 3 // 2 - len(worker.in_flight))

    def _start(self) -> WorkerProcess:
        self._started += 1
        worker = WorkerProcess(f"worker-{self._started}", self._processes, self._children)
        worker.listen(on_message=self._on_message, on_excess=self._on_excess, on_exit=self._on_exit)
        return worker

    def _on_message(self, worker: WorkerProcess, message: dict[str, object]) -> None:
        with self._changed:
            if worker.ready:  # from here on the agent's code may write to the pipe too
                self._on_result(worker, message)
            elif not self._has(worker):  # a replaced worker's messages are ignored
                return
            elif "broken" in message:
                self._failure = BadReference(str(message["broken"]))
            elif "ready" in message:
                worker.cancels = bool(message.get("cancels"))
                worker.ready = True
            self._changed.notify_all()

    def _on_result(self, worker: WorkerProcess, message: dict[str, object]) -> None:
        name = str(message.get("id"))
        if name not in worker.in_flight:
            return
        if message.get("returned"):
            worker.returned.setdefault(name, time.monotonic())
            return
        if message.get("uncancellable"):
            worker.uncancellable.add(name)
            return
        attempt = worker.in_flight.pop(name)
        worker.returned.pop(name, None)
        outcome, reason = str(message.get("outcome")), str(message.get("reason", ""))
        if outcome not in COUNTED_OUTCOMES:
            outcome, reason = Outcome.ERROR, f"its worker sent the unknown outcome '{outcome}'"
        self._on_end(attempt, AttemptResult(Outcome(outcome), reason, message.get("result")))
        if message.get("kills"):
            self._end_worker(worker, f"attempt {attempt.id} ended its worker")
        elif worker in self._retiring and not worker.in_flight:
            self._end_worker(worker, "")

    def _end_worker(self, worker: WorkerProcess, reason: str) -> None:
        for attempt in self._replace(worker, set()):
            self._on_end(attempt, AttemptResult(Outcome.INFRA, reason, died=True))
        worker.stop()

    def _on_excess(self, worker: WorkerProcess) -> None:
        with self._changed:
            if not self._closed and self._has(worker):
                self._end_for(worker, describe_excess("its worker"))
            worker.stop()

    def _on_exit(self, worker: WorkerProcess) -> None:
        with self._changed:
            worker.stop()
            self._end_timeouts(worker.overdue_attempts)
            if self._closed or not self._has(worker):
                return
            if worker.ready:
                self._end_for(worker, "its worker died")
            elif self._failure is None:
                self._failure = WorkerFailed(
                    f"A worker ended before it had imported '{self._processes.agent}'. "
                    f"The last lines of {worker.log}:\n{worker.tail()}"
                )
            self._changed.notify_all()

    def _end_for(self, worker: WorkerProcess, reason: str) -> None:
        """End the attempts in a worker for what one of them did, and replace the worker."""
        for attempt in self._replace(worker, set()):
            shared = attempt.id in worker.shared_attempts
            self._on_end(attempt, result_of_death(attempt, reason, shared=shared))

    def _has(self, worker: WorkerProcess) -> bool:
        return worker in self._workers or worker in self._retiring

    def _end_timeouts(self, attempts: Collection[Attempt]) -> None:
        for attempt in attempts:
            reason = f"still running after {attempt.timeout:g} s of its own time"
            self._on_end(attempt, AttemptResult(Outcome.TIMEOUT, reason))

    def _retire(self, worker: WorkerProcess, overdue: set[str]) -> None:
        """End overdue threads' attempts, and let the worker run its others and no more."""
        self._end_timeouts([worker.in_flight.pop(name) for name in overdue])
        if worker in self._workers:
            self._retiring.append(worker)
            self._start_in_place_of(worker)

    def _replace(self, worker: WorkerProcess, overdue: set[str]) -> list[Attempt]:
        """Start another worker in its place, and return its attempts that are not overdue."""
        # overdue attempts end when the process has exited, after its last spans
        worker.overdue_attempts = [worker.in_flight.pop(name) for name in overdue]
        in_flight, worker.ready = list(worker.in_flight.values()), False
        worker.in_flight.clear()
        if worker in self._retiring:
            self._retiring.remove(worker)
        else:
            self._start_in_place_of(worker)
        return in_flight

    def _start_in_place_of(self, worker: WorkerProcess) -> None:
        try:
            self._workers[self._workers.index(worker)] = self._start()
        except (OSError, ChildDied) as error:
            self._failure = WorkerFailed(f"No worker can be started: {error}")
