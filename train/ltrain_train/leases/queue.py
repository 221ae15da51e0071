"""The queue of attempts that workers on other machines take.

* Every offered attempt gets exactly one result: the worker's, or `infra` when its lease ends first.
* A lease ends when its worker leaves, or has not reported the attempt for `LEASE_SECONDS`. A result
  after that is refused, because the rollout may be tried elsewhere already.
* A result stays until its runner reports it received. The attempts of a runner that has not asked
  for `RUNNER_SECONDS` are cancelled.
* An attempt is leased once; its worker gets it again if the answer was lost. A repeated offer of an
  attempt that has ended changes nothing.
* Everything is in memory. After a restart the queue knows no attempt: runners end theirs as
  `infra`, and the results of workers are refused.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice

from ltrain_train.leases.messages import (
    LeasedAttempt,
    LeaseResult,
    Results,
    ResultsRequest,
    Take,
    WorkerOrders,
)
from ltrain_train.workers import Outcome

LEASE_SECONDS = 30.0
"""Seconds that a lease lasts after the worker's last report of the attempt."""
RUNNER_SECONDS = 60.0
"""Seconds after which a silent runner counts as gone."""
REMEMBERED = 10_000
"""Attempts of a runner that the queue remembers after their end."""


@dataclass(slots=True)
class Lease:
    """One offered attempt that has no result yet."""

    attempt: LeasedAttempt
    runner: str
    worker: str | None = None
    """The worker that has taken it; None while it waits."""
    until: float = 0.0
    """Seconds of the clock at which the lease ends."""
    overdue: bool = False


@dataclass(slots=True)
class RunnerState:
    """A runner that offers attempts."""

    seen: float
    """Seconds of the clock at its last request."""
    results: dict[str, LeaseResult] = field(default_factory=dict)
    """Results that it has not reported received, by execution id."""
    ended: dict[str, None] = field(default_factory=dict)
    """The last `REMEMBERED` execution ids whose results it has received."""


@dataclass(slots=True)
class WorkerState:
    """A worker that takes attempts."""

    slots: int
    seen: float


class LeaseQueue:
    """The attempts, runners and workers of one gateway; used by one thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Prepare an empty queue; `clock` returns seconds."""
        self._clock = clock
        self._leases: dict[str, Lease] = {}
        """Attempts without a result, by execution id; those that wait are in order of arrival."""
        self._runners: dict[str, RunnerState] = {}
        self._workers: dict[str, WorkerState] = {}

    def offer(self, runner: str, attempts: Iterable[LeasedAttempt]) -> None:
        """Add attempts; one that is known already, because a request was repeated, changes
        nothing."""
        state = self._runner(runner)
        known = (self._leases, state.results, state.ended)
        for attempt in attempts:
            if not any(attempt.id in ids for ids in known):
                self._leases[attempt.id] = Lease(attempt, runner)

    def time_out(self, runner: str, attempts: Iterable[str]) -> None:
        """Mark attempts that exceeded their time limit; one that still waits ends at once."""
        for lease in [self._leases[name] for name in attempts if name in self._leases]:
            if lease.runner != runner:
                continue
            lease.overdue = True
            if lease.worker is None:
                self._end(lease, "no worker took it before its time limit")

    def results(self, request: ResultsRequest) -> Results:
        """Return the results that the runner has not received."""
        state = self._runner(request.runner)
        for name in request.received:
            if state.results.pop(name, None):
                state.ended[name] = None
        while len(state.ended) > REMEMBERED:
            del state.ended[next(iter(state.ended))]
        unknown = [
            name
            for name in request.in_flight
            if name not in self._leases and name not in state.results
        ]
        return Results(
            results=list(state.results.values()), unknown=unknown, room=self.room(request.runner)
        )

    def room(self, runner: str) -> int:
        """Return how many attempts of this runner the workers can run at a time."""
        slots = sum(worker.slots for worker in self._workers.values())
        return max(0, slots - sum(lease.runner != runner for lease in self._leases.values()))

    def remove_runner(self, runner: str) -> None:
        """Forget a runner that has stopped; its attempts in workers are ended there."""
        self._runners.pop(runner, None)
        for lease in [each for each in self._leases.values() if each.runner == runner]:
            del self._leases[lease.attempt.id]

    def take(self, request: Take) -> list[LeasedAttempt]:
        """Lease the attempts that wait longest to a worker, at most as many as it can start.

        Those that were leased to it before, in an answer that it did not get, come first.
        """
        now, held = self._clock(), set(request.held)
        self._workers[request.worker] = WorkerState(request.slots, now)
        leases = self._leases.values()
        lost = (each for each in leases if each.worker == request.worker)
        taken = [lease for lease in lost if lease.attempt.id not in held]
        waiting = (lease for lease in leases if lease.worker is None)
        taken += islice(waiting, max(0, request.free - len(taken)))
        for lease in taken:
            lease.worker, lease.until = request.worker, now + LEASE_SECONDS
        return [lease.attempt for lease in taken]

    def renew(self, worker: str, running: Sequence[str]) -> WorkerOrders:
        """Renew the leases of the attempts that a worker runs."""
        now = self._clock()
        if worker in self._workers:
            self._workers[worker].seen = now
        overdue, lost = [], []
        for name in running:
            lease = self._leases.get(name)
            if lease is None or lease.worker != worker:
                lost.append(name)
                continue
            lease.until = now + LEASE_SECONDS
            if lease.overdue:
                overdue.append(name)
        return WorkerOrders(overdue=overdue, lost=lost)

    def finish(self, worker: str, results: Iterable[LeaseResult]) -> list[str]:
        """Keep a worker's results for the runners; return the refused ones' execution ids."""
        refused = []
        for result in results:
            lease = self._leases.get(result.id)
            if lease is None or lease.worker != worker:
                refused.append(result.id)
            else:
                self._keep(lease, result)
        return refused

    def remove_worker(self, worker: str) -> None:
        """Forget a worker that stops; its leases end."""
        self._workers.pop(worker, None)
        for lease in [each for each in self._leases.values() if each.worker == worker]:
            self._end(lease, "its worker was stopped")

    def expire(self) -> bool:
        """End the leases that were not renewed; return whether one was."""
        now, before = self._clock(), len(self._leases)
        for lease in [each for each in self._leases.values() if each.worker]:
            if lease.until <= now:
                self._end(lease, f"its worker did not report it for {LEASE_SECONDS:g} s")
        for name, worker in list(self._workers.items()):
            if worker.seen + LEASE_SECONDS <= now:
                del self._workers[name]
        for name, runner in list(self._runners.items()):
            if runner.seen + RUNNER_SECONDS <= now:
                self.remove_runner(name)
        return len(self._leases) < before

    def _runner(self, name: str) -> RunnerState:
        state = self._runners.setdefault(name, RunnerState(self._clock()))
        state.seen = self._clock()
        return state

    def _end(self, lease: Lease, reason: str) -> None:
        self._keep(lease, LeaseResult(id=lease.attempt.id, outcome=Outcome.INFRA, reason=reason))

    def _keep(self, lease: Lease, result: LeaseResult) -> None:
        del self._leases[lease.attempt.id]
        self._runners[lease.runner].results[result.id] = result
