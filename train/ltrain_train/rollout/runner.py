"""Runs tasks through an agent, n times each, and leaves a closed trace of every rollout.

* An attempt's dispatch span is on disk before it starts; after it come the end of its key, the
  reward function's values, and its closing span, in that order.
* What an outage ends is tried again as another attempt, at most three times. That there was one is
  known from the gateway, the kernel or this process; else it is the agent's, and counts.
* A reward function that fails on a result makes it the agent's error; on most, it ends the run.
"""

import os
import queue
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from types import TracebackType
from typing import Self

from ltrain_instrument.allow import Allow
from ltrain_instrument.identity import Identity, Mode
from ltrain_instrument.settings import SECRETS
from ltrain_train.gateway.client import GatewayClient
from ltrain_train.rollout.attempt import Attempt, Ending, Outcome, RolloutResult, WaveResult
from ltrain_train.rollout.command import Commands
from ltrain_train.rollout.desk import Desk, Flight, Settled, Terms
from ltrain_train.rollout.judge import Judge
from ltrain_train.rollout.lane import Lane, environment
from ltrain_train.rollout.ledger import Ledger
from ltrain_train.rollout.reference import is_reference
from ltrain_train.rollout.standing import finished
from ltrain_train.rollout.store_keys import StoreKeys
from ltrain_train.rollout.tasks import Task, check_ids
from ltrain_train.rollout.visit import Visit, visits
from ltrain_train.rollout.warm import WarmWorkers
from ltrain_train.service_key import open_service

__all__ = ["Runner", "finished"]

START = 120.0
"""Seconds that a worker may take to import the agent."""
SETTLERS = 8
"""Rollouts judged and closed at a time."""
POLL = 0.1
"""Seconds between two looks at the deadlines."""

Seen = Callable[[RolloutResult], None]
_Event = tuple[Attempt, Ending] | Settled | BaseException


class Runner:
    """Owns the agent's processes; use it in a `with` block, and `run` as many waves as you like.

    `agent` is `module:function`, imported from `folder` into warm workers, or a shell command.
    Entering starts the workers and does not wait for them: an agent that cannot be imported is an
    error of the first `run`.
    """

    def __init__(
        self,
        *,
        run: str,
        agent: str,
        reward: str | None,
        folder: Path,
        gateway: str,
        secret: str,
        policy: str,
        home: Path,
        workers: int = 2,
        concurrency: int = 16,
        deadline: float = 60.0,
        environ: Mapping[str, str] | None = None,
        agent_sees: Sequence[str] = ("input",),
        allow: Sequence[Allow] = (),
        held: Sequence[int] = (),
    ) -> None:
        """Prepare to make rollouts of a run.

        Args:
            run: the run's name, for all waves.
            agent: `module:function` or a command.
            reward: `module:function`; None: there are no rewards.
            folder: where both are.
            gateway: its URL.
            secret: the gateway's.
            policy: what answers.
            home: LTRAIN_HOME.
            workers: processes.
            concurrency: rollouts at a time in a worker.
            deadline: seconds an attempt.
            environ: laid over the agent's environment.
            agent_sees: keys of a task that the agent sees, beside id and domain.
            allow: what calls in mode `train` may ask for although it makes them untrainable.
            held: descriptors, of a run's lock, that stay open until its processes have ended.
        """
        self._store_keys = StoreKeys.of(home, os.environ)
        self._run, self._agent_sees, self._allow = run, tuple(agent_sees), tuple(allow)
        self._agent, self._folder, self._home = agent, folder.resolve(), home
        self._workers, self._concurrency = workers, concurrency
        self._environ = environment(home, {**dict.fromkeys(SECRETS), **(environ or {})})
        self._events: queue.SimpleQueue[_Event] = queue.SimpleQueue()
        self._judge = Judge(reward, self._folder) if reward else None
        self._gateway, self._secret, self._policy = gateway, secret, policy
        self._deadline = deadline
        self._held = tuple(held)
        self._cancelled: list[Identity] = []
        """Attempts that ran when a wave was stopped."""
        self._lane: Lane | None = None

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._client = stack.enter_context(closing(GatewayClient(self._gateway, self._secret)))
            self._provider = open_service("ltrain-runner", self._home)
            stack.callback(self._provider.shutdown)
            stack.callback(self._send_what_is_left)
            lane = self._open_lane(self._home / "logs" / "rollouts")
            self._lane = stack.enter_context(closing(lane))
            self._owned = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._lane = None
        self._owned.close()

    def run(
        self,
        mode: Mode,
        wave: int,
        tasks: Sequence[Task],
        per_task: int,
        *,
        sampling: Mapping[str, float],
        finished: Collection[str] = (),
        seen: Seen | None = None,
    ) -> WaveResult:
        """Run each task `per_task` times, but for the rollout ids in `finished`, and wait.

        `sampling` is what the gateway imposes on the agent's calls. `seen` is told of each rollout
        as it ends.

        Raises:
            BadTasks: when two tasks share an id.
            BadReference, WorkerFailed: when the agent cannot be started.
            RewardFailed: when the reward function failed on most results.
            GatewayUnreachable: when the gateway stays away.
        """
        check_ids(tasks)
        skipped = set(finished)
        desk = Desk(
            provider=self._provider,
            client=self._client,
            judge=self._judge,
            ledger=Ledger(self._home / "runs" / self._run),
            gateway=self._gateway,
            secret=self._secret,
            terms=Terms(
                self._policy, dict(sampling), self._deadline, self._agent_sees, self._allow
            ),
            store_keys=self._store_keys,
        )
        asked = list(visits(self._run, mode, wave, tasks, per_task))
        if self._store_keys is not None:
            self._store_keys.sweep(visit.identity for visit in asked)
        left = deque(visit for visit in asked if visit.identity.rollout not in skipped)
        return self._fly(desk, left, seen or (lambda result: None), len(skipped))

    def _fly(self, desk: Desk, waiting: deque[Visit], seen: Seen, before: int) -> WaveResult:
        lane, results = self._ready_lane(), WaveResult()
        flying: dict[str, Flight] = {}
        settlers = ThreadPoolExecutor(SETTLERS, thread_name_prefix="settle")
        try:
            while waiting or flying:
                self._dispatch(desk, lane, waiting, flying)
                lane.expire()
                for event in self._heard():
                    if isinstance(event, BaseException):
                        raise event
                    if isinstance(event, Settled):
                        del flying[event.flight.attempt.id]
                        if event.again is not None:
                            waiting.append(event.again)
                        elif event.result is not None:
                            results.append(event.result)
                            seen(event.result)
                    elif (flight := flying.get(event[0].id)) is not None:
                        settlers.submit(self._settle, desk, flight, event[1])
        except BaseException:
            settlers.shutdown(wait=False, cancel_futures=True)
            desk.cancel(list(flying.values()))
            self._cancelled += [flight.attempt.identity for flight in flying.values()]
            raise
        settlers.shutdown()
        judged = sum(result.outcome is Outcome.OK for result in results)
        for result in desk.close_unjudged(judged + before):
            results.append(result)
            seen(result)
        return results

    def _dispatch(
        self, desk: Desk, lane: Lane, waiting: deque[Visit], flying: dict[str, Flight]
    ) -> None:
        if waiting and not flying:
            lane.wait_ready(START)
        while (visit := _next(lane, waiting)) is not None:
            waiting.remove(visit)
            flight = desk.open(visit)
            flying[flight.attempt.id] = flight
            lane.submit(flight.attempt)

    def _settle(self, desk: Desk, flight: Flight, ending: Ending) -> None:
        try:
            settled = desk.settle(flight, ending)
        except BaseException as error:  # raised again by the loop, which waits for this event
            self._events.put(error)
        else:
            if settled is not None:
                self._events.put(settled)

    def _heard(self) -> list[_Event]:
        try:
            heard = [self._events.get(timeout=POLL)]
        except queue.Empty:
            return []
        while not self._events.empty():
            heard.append(self._events.get())
        return heard

    def _send_what_is_left(self) -> None:
        """Send what cancelled attempts left, whose processes have ended by now."""
        if self._store_keys is not None:
            self._store_keys.send_all_that_is_left(self._cancelled)

    def _ready_lane(self) -> Lane:
        if self._lane is None:
            raise RuntimeError("Runner.run needs the workers: use it inside `with Runner(...)`.")
        return self._lane

    def _open_lane(self, logs: Path) -> Lane:
        def ended(attempt: Attempt, ending: Ending) -> None:
            self._events.put((attempt, ending))

        if is_reference(self._agent):
            bound = self._store_keys.run(self._run) if self._store_keys else {}
            return WarmWorkers(
                self._agent,
                folder=self._folder,
                environ={**self._environ, **bound},
                logs=logs,
                workers=self._workers,
                concurrency=self._concurrency,
                ended=ended,
                held=self._held,
            )
        return Commands(
            self._agent,
            folder=self._folder,
            environ=self._environ,
            logs=logs,
            workers=self._workers,
            ended=ended,
            held=self._held,
        )


def _next(lane: Lane, waiting: deque[Visit]) -> Visit | None:
    """Return the visit that can start now; one that needs a process of its own comes first."""
    alone = next((visit for visit in waiting if visit.alone), None)
    if alone is not None and lane.room(alone=True):
        return alone
    shared = next((visit for visit in waiting if not visit.alone), None)
    return shared if shared is not None and lane.room() else None
