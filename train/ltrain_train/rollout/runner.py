"""Runs tasks through an agent, n times each, and writes a closed trace of every rollout.

* An attempt's dispatch span is on disk before the attempt starts. When it ends, its key is revoked,
  its rewards are written, and then its closing span.
* A rollout that an outage ended is tried again as another attempt, at most three times. Only the
  gateway, the kernel or this process can report an outage; any other failure is the agent's.
* While the gateway holds calls, no attempt starts. An attempt's time limit bounds the agent's own
  time; an attempt that its calls made too late is tried again, and never counts. Then fewer
  attempts run at a time, unless the user chose how many.
* If the reward function fails on a result, the attempt is an error of the agent; if it fails on
  most results, the run ends.
* A wave may end when enough groups have ended. Its other rollouts are carried over: their agents
  go on, and a later wave returns their results. Between two waves no result is judged, and no time
  limit ends.
"""

import os
import queue
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Self

from ltrain_instrument.files import path_component
from ltrain_instrument.identity import Identity, Mode
from ltrain_instrument.prompts import Prompt
from ltrain_train.attempt_services import ServicePool
from ltrain_train.errors import RunStopped
from ltrain_train.gateway import GatewayClient
from ltrain_train.policy import Policies, current_prompts
from ltrain_train.rollout.attempt_limits import POLL, Concurrency, GatewayWatch, TimeLimits
from ltrain_train.rollout.attempt_log import AttemptLog
from ltrain_train.rollout.attempts import Attempts, ClosedAttempt, RunningAttempt, WaveTerms
from ltrain_train.rollout.executor import RunnerEnvironment, next_rollout, open_executor
from ltrain_train.rollout.open_rollouts import Group, OpenRollouts
from ltrain_train.rollout.planned_rollout import plan_rollouts
from ltrain_train.rollout.program import AgentProgram
from ltrain_train.rollout.runner_spans import SpanWriter
from ltrain_train.rollout.scorer import Scorer
from ltrain_train.rollout.store_keys import StoreKeys
from ltrain_train.rollout.tasks import Task, require_unique_ids
from ltrain_train.schedule import EarlyStop
from ltrain_train.store import open_service_provider
from ltrain_train.workers import Attempt, AttemptResult, Executor, RolloutResult, WaveResult

START_TIMEOUT = 120.0
"""Maximum seconds for a worker to import the agent."""
CLOSING_THREADS = 8
"""Minimum number of attempts that are closed at a time, while others are judged."""

OnResult = Callable[[RolloutResult], None]
_Event = tuple[Attempt, AttemptResult] | ClosedAttempt | BaseException


class Runner(ExitStack):
    """Owns the agent's processes; use it in a `with` block.

    `run` runs a wave to its end. `dispatch` and `wait`, for one thread at a time, let the rollouts
    of several waves overlap.

    Entering the block starts the workers without waiting for them: if the agent cannot be imported,
    the first `run` raises the error.
    """

    def __init__(
        self,
        program: AgentProgram,
        environment: RunnerEnvironment,
        log: AttemptLog | None = None,
    ) -> None:
        """Prepare the rollouts of a run.

        Args:
            log: the log of the run's attempts, if it has been read already.

        Raises:
            BadInterpreter: when the program's Python cannot run the agent.
            BadReference: when there is no such reward function.
        """
        super().__init__()
        self._program = program = replace(program, folder=program.folder.resolve())
        self._environment, home = environment, environment.home
        # the agent of a remote worker sends its spans with the worker's own key
        self._store_keys = None if program.agent is None else StoreKeys.from_home(home, os.environ)
        self._python = program.interpreter
        self._environ = program.environment(home, self._python)
        self._events: queue.SimpleQueue[_Event] = queue.SimpleQueue()
        self._scorer = Scorer(program)
        self._cancelled: list[Identity] = []
        """Attempts that were in flight when a wave was stopped."""
        self._executor: Executor | None = None
        self._open = OpenRollouts()
        self.log = log or AttemptLog(home / "runs" / path_component(environment.run))
        self._limits = TimeLimits(program.wall_seconds)
        self._concurrency = Concurrency(program.most_attempts if program.adapts else 0)
        self._stopped = threading.Event()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self._scorer)
            environment, program = self._environment, self._program
            client = GatewayClient(environment.gateway, environment.secret)
            self._client = stack.enter_context(closing(client))
            # the log must not close an attempt whose closing span is lost
            self._provider = open_service_provider("ltrain-runner", environment.home, strict=True)
            stack.callback(self._provider.shutdown)
            self.log.close_ended(SpanWriter(self._provider).write_end_again)
            stack.callback(self._send_leftovers)
            pool = ServicePool(
                program.services,
                folder=program.folder,
                home=environment.home,
                secrets=program.secrets,
                keep_open=environment.keep_open,
            )
            self._pool = stack.enter_context(closing(pool))
            executor = self._open_executor()
            self._executor = stack.enter_context(closing(executor))
            stack.callback(setattr, self, "_executor", None)
            stack.callback(lambda: self._cancelled.extend(self._open.cancel()))
            self.push(stack.pop_all())
        return self

    def run(
        self,
        mode: Mode,
        wave: int,
        tasks: Sequence[Task],
        rollouts_per_task: int,
        *,
        sampling: Mapping[str, float],
        finished: Collection[str] = (),
        on_result: OnResult | None = None,
    ) -> WaveResult:
        """Run each task `rollouts_per_task` times, and what was carried over, until they end.

        The arguments are those of `dispatch` and `wait`, and so are the errors.
        """
        self.dispatch(mode, wave, tasks, rollouts_per_task, sampling=sampling, finished=finished)
        return self.wait(on_result=on_result)

    @property
    def open_groups(self) -> set[Group]:
        """The groups that were dispatched and have not ended."""
        return self._open.groups

    @property
    def open_rollouts(self) -> int:
        """The number of rollouts that were dispatched and have not ended."""
        return len(self._open)

    def dispatch(
        self,
        mode: Mode,
        wave: int,
        tasks: Sequence[Task],
        rollouts_per_task: int,
        *,
        sampling: Mapping[str, float],
        policy_sampling: Mapping[str, dict[str, float]] | None = None,
        finished: Collection[str] = (),
        prompts: Mapping[str, Prompt] | None = None,
    ) -> None:
        """Add each task `rollouts_per_task` times; the next `wait` runs them.

        Args:
            mode: `train`, `val` or another mode of the rollouts.
            sampling: sampling parameters that the gateway imposes on the agent's calls.
            policy_sampling: those of calls of certain policies, in place of `sampling`.
            finished: ids of ended rollouts, which do not run.
            prompts: versions that the agent reads in place of the current ones, by name.

        Raises:
            BadTasks: when two tasks share an id.
        """
        require_unique_ids(tasks)
        environment = self._environment
        attempts = Attempts(
            self._program,
            environment,
            WaveTerms(
                dict(sampling),
                dict(policy_sampling or {}),
                current_prompts(Policies(environment.home)) | dict(prompts or {}),
            ),
            self.log,
            provider=self._provider,
            client=self._client,
            scorer=self._scorer,
            store_keys=None if self._program.is_function else self._store_keys,
        )
        planned = list(plan_rollouts(environment.run, mode, wave, tasks, rollouts_per_task))
        if self._store_keys is not None:
            self._store_keys.send_earlier_leftovers(rollout.identity for rollout in planned)
        self._open.add(attempts, planned, finished)

    def wait(
        self, *, enough_groups: int | None = None, on_result: OnResult | None = None
    ) -> WaveResult:
        """Run what was dispatched until it ends, and return the results that this call has seen.

        Args:
            enough_groups: groups whose end is enough; the rollouts of the others go on, and a later
                call returns their results. None: it waits for every rollout.

        Raises:
            BadSchedule: when `enough_groups` is below 1.
            BadReference, WorkerFailed: when the agent cannot be started.
            RewardFailed: when the reward function failed on most results.
            GatewayUnreachable: when the gateway does not come back.
            ServiceFailed: when a service cannot be started, or ends again and again.
            RunStopped: when `stop` was called.
        """
        wave_end = self._open.begin_wave(enough_groups)
        results = WaveResult()

        def add(result: RolloutResult) -> None:
            results.append(result)
            if on_result is not None:
                on_result(result)

        try:
            self._run_open(wave_end, add)
        except BaseException:
            self._cancelled += self._open.cancel()
            raise
        return results

    def stop(self) -> None:
        """End a `wait` of another thread, which then cancels every rollout, and every later one."""
        self._stopped.set()

    def _run_open(self, wave_end: EarlyStop, add: OnResult) -> None:
        """Run the open rollouts until the wave is full."""
        executor, rollouts = self._executor, self._open
        if executor is None:
            raise RuntimeError("A runner needs its workers: use it inside `with Runner(...)`.")
        watch = GatewayWatch(self._client, self._environment.policy, self._limits)
        threads = CLOSING_THREADS + self._scorer.concurrency
        closers = ThreadPoolExecutor(threads, thread_name_prefix="close")
        try:
            while not wave_end.is_full:
                if self._stopped.is_set():
                    raise RunStopped("The rollouts were stopped.")
                if rollouts.waiting and watch.is_ready():
                    self._start_attempts(executor)
                in_flight = rollouts.in_flight
                executor.time_out(watch.overdue(each.attempt for each in in_flight.values()))
                for event in self._next_events():
                    if not isinstance(event, tuple):
                        self._add_closed(event, wave_end, add)
                        if isinstance(event, ClosedAttempt) and event.next_try is not None:
                            watch.expire()  # an outage costs a rollout one try at most
                    elif (running := in_flight.get(event[0].id)) is not None:
                        ended = self._limits.excuse(*event)
                        attempts = rollouts.attempts(running.rollout)
                        closers.submit(self._close_attempt, attempts, running, ended)
        except BaseException:
            closers.shutdown(wait=False, cancel_futures=True)
            raise
        closers.shutdown()
        for event in self._take_closed():
            self._add_closed(event, wave_end, add)
        for result in rollouts.close_unscored():
            add(result)

    def _add_closed(
        self, event: ClosedAttempt | BaseException, wave_end: EarlyStop, add: OnResult
    ) -> None:
        if isinstance(event, BaseException):
            raise event
        self._concurrency.add(event, self._open.in_flight)
        if (group := self._open.end(event)) is not None:
            wave_end.end(group)
            if event.result is not None:
                add(event.result)

    def _take_closed(self) -> list[ClosedAttempt | BaseException]:
        """Remove and return the events of closed attempts; leave those of attempts to be closed."""
        events = [] if self._events.empty() else self._next_events()
        for event in events:
            if isinstance(event, tuple):
                self._events.put(event)
        return [event for event in events if not isinstance(event, tuple)]

    def _start_attempts(self, executor: Executor) -> None:
        if not self._open.in_flight:
            executor.wait_ready(START_TIMEOUT)
        while not self._concurrency.is_reached(len(self._open.in_flight)):
            if (rollout := next_rollout(executor, self._open.waiting)) is None:
                return
            if (lease := self._pool.acquire()) is None:
                self._open.waiting.push(rollout)
                return
            executor.submit(self._open.start(rollout, lease))

    def _close_attempt(
        self, attempts: Attempts, running: RunningAttempt, result: AttemptResult
    ) -> None:
        try:
            closed = attempts.close(running, result)
        except BaseException as error:  # `_run_open` waits for this event and raises the error
            self._events.put(error)
        else:
            if closed is not None:
                self._events.put(closed)

    def _next_events(self) -> list[_Event]:
        try:
            events = [self._events.get(timeout=POLL)]
        except queue.Empty:
            return []
        while not self._events.empty():
            events.append(self._events.get())
        return events

    def _send_leftovers(self) -> None:
        """Send the spans that cancelled attempts left; their processes have ended by now."""
        if self._store_keys is not None:
            self._store_keys.send_all_leftovers(self._cancelled)

    def _open_executor(self) -> Executor:
        environ = self._environ
        if self._program.is_function and self._store_keys is not None:
            environ = {**environ, **self._store_keys.run_environment(self._environment.run)}
        return open_executor(
            self._program,
            self._environment,
            self._python,
            environ,
            lambda attempt, result: self._events.put((attempt, result)),
        )
