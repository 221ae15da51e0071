"""Runs tasks through an agent, n times each, and writes a closed trace of every rollout.

* An attempt's dispatch span is on disk before the attempt starts. When it ends, its key is revoked,
  its rewards are written, and then its closing span.
* A rollout that an outage ended is tried again as another attempt, at most three times. Only the
  gateway, the kernel or this process can report an outage; any other failure is the agent's.
* While the gateway holds calls, no attempt starts and no attempt's time limit runs.
* If the reward function fails on a result, the attempt is an error of the agent; if it fails on
  most results, the run ends.
* A wave may end when enough groups have ended. Its other rollouts are carried over: their agents
  go on, and a later wave returns their results. Between two waves no result is judged, and no time
  limit ends.
"""

import os
import queue
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

from ltrain_instrument.allow import Allow
from ltrain_instrument.files import path_component
from ltrain_instrument.identity import Identity, Mode
from ltrain_instrument.prompts import Prompt
from ltrain_instrument.settings import SECRETS
from ltrain_train.attempt_services import ServicePool
from ltrain_train.errors import RunStopped
from ltrain_train.gateway import GatewayClient
from ltrain_train.policy import Policies, current_prompts
from ltrain_train.rollout.attempt_log import AttemptLog
from ltrain_train.rollout.attempts import Attempts, ClosedAttempt, RunningAttempt, WaveSettings
from ltrain_train.rollout.executor import next_rollout, open_executor, rollout_logs
from ltrain_train.rollout.gateway_watch import GatewayWatch
from ltrain_train.rollout.open_rollouts import Group, OpenRollouts
from ltrain_train.rollout.planned_rollout import plan_rollouts
from ltrain_train.rollout.rewards import REWARD_CONCURRENCY, REWARD_TIMEOUT
from ltrain_train.rollout.scorer import Scorer
from ltrain_train.rollout.store_keys import StoreKeys
from ltrain_train.rollout.tasks import Task, require_unique_ids
from ltrain_train.schedule import EarlyStop
from ltrain_train.store import open_service_provider
from ltrain_train.workers import (
    Attempt,
    AttemptResult,
    Executor,
    RolloutResult,
    WaveResult,
    agent_environment,
    find_python,
    is_reference,
)

if TYPE_CHECKING:  # its import takes a second, which `ltrain rollout` saves
    from ltrain_transforms.recipe import Judge, Service

START_TIMEOUT = 120.0
"""Maximum seconds for a worker to import the agent."""
CLOSING_THREADS = 8
"""Minimum number of attempts that are closed at a time, while others are judged."""
POLL = 0.1
"""Seconds between two checks of the time limits."""

OnResult = Callable[[RolloutResult], None]
_Event = tuple[Attempt, AttemptResult] | ClosedAttempt | BaseException


class Runner(ExitStack):
    """Owns the agent's processes; use it in a `with` block.

    `run` runs a wave to its end. `dispatch` and `wait`, for one thread at a time, let the rollouts
    of several waves overlap.

    `agent` is `module:function`, imported from `folder` by worker processes, or a shell command;
    None if the workers of the gateway (`ltrain worker`) have it.
    Entering the block starts the workers without waiting for them: if the agent cannot be imported,
    the first `run` raises the error.
    """

    def __init__(
        self,
        *,
        run: str,
        agent: str | None,
        reward: str | None,
        folder: Path,
        gateway: str,
        secret: str,
        policy: str,
        home: Path,
        gateway_given_up: Callable[[], str] = lambda: "",
        workers: int = 2,
        concurrency: int = 16,
        python: str | None = None,
        timeout: float = 60.0,
        reward_timeout: float = REWARD_TIMEOUT,
        reward_concurrency: int = REWARD_CONCURRENCY,
        reward_rate: float | None = None,
        environ: Mapping[str, str] | None = None,
        judges: Mapping[str, "Judge"] | None = None,
        services: Sequence["Service"] = (),
        secrets: Iterable[str] = (),
        agent_sees: Sequence[str] = ("input",),
        allow: Sequence[Allow] = (),
        pin_version: bool = False,
        keep_open: Sequence[int] = (),
    ) -> None:
        """Prepare the rollouts of a run.

        Args:
            agent: `module:function` or a command; None for the agent of the gateway's workers.
            reward: `module:function`, a command or a URL; None for no rewards.
            folder: folder of the agent and the reward function.
            gateway_given_up: returns why no gateway will answer again; '' while one may.
            concurrency: rollouts at a time in one worker.
            python: the Python of the agent's processes; None for ltrain's own.
            reward_timeout: seconds for the reward of one result.
            reward_concurrency: results that are judged at a time.
            reward_rate: calls of the reward in a second; None for as many as there are.
            environ: variables added to the agent's environment.
            judges: the recipe's judges by the name of their evaluation.
            services: the recipe's services, which the agent uses.
            secrets: variables that the agent does not get, besides ltrain's own.
            agent_sees: keys of a task that the agent may read, besides id and domain.
            allow: untrainable request features that calls in mode `train` may use.
            pin_version: whether an attempt whose version is gone is tried again.
            keep_open: descriptors of the run's lock, open until all processes have ended.
        """
        super().__init__()
        # the agent of a remote worker sends its spans with the worker's own key
        self._store_keys = None if agent is None else StoreKeys.from_home(home, os.environ)
        self._run, self._gateway, self._secret = run, gateway, secret
        self._settings = WaveSettings(
            policy, {}, {}, timeout, tuple(agent_sees), tuple(allow), pin_version
        )
        self._agent, self._folder, self._home = agent, folder.resolve(), home
        self._is_function = agent is not None and is_reference(agent)
        self._workers, self._concurrency = workers, concurrency
        self._services, self._secrets = tuple(services), tuple(secrets)
        hidden = dict.fromkeys([*SECRETS, *self._secrets])
        self._python = find_python(python, self._folder)
        self._environ = agent_environment(home, {**hidden, **(environ or {})}, self._python)
        self._events: queue.SimpleQueue[_Event] = queue.SimpleQueue()
        self._scorer = Scorer(
            reward,
            judges or {},
            self._folder,
            timeout=reward_timeout,
            concurrency=reward_concurrency,
            rate=reward_rate,
        )
        self._gateway_given_up = gateway_given_up
        self._keep_open = tuple(keep_open)
        self._cancelled: list[Identity] = []
        """Attempts that were in flight when a wave was stopped."""
        self._executor: Executor | None = None
        self._open = OpenRollouts()
        self._stopped = threading.Event()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self._scorer)
            client = GatewayClient(self._gateway, self._secret, given_up=self._gateway_given_up)
            self._client = stack.enter_context(closing(client))
            self._provider = open_service_provider("ltrain-runner", self._home)
            stack.callback(self._provider.shutdown)
            stack.callback(self._send_leftovers)
            pool = ServicePool(
                self._services,
                folder=self._folder,
                home=self._home,
                secrets=self._secrets,
                keep_open=self._keep_open,
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
            wave: number of the wave.
            tasks: the tasks, with unique ids.
            sampling: sampling parameters that the gateway imposes on the agent's calls.
            policy_sampling: those of calls of certain policies, in place of `sampling`.
            finished: ids of ended rollouts, which run only if a later attempt was cut off.
            prompts: versions that the agent reads in place of the current ones, by name.

        Raises:
            BadTasks: when two tasks share an id.
        """
        require_unique_ids(tasks)
        log = AttemptLog(self._home / "runs" / path_component(self._run))
        attempts = Attempts(
            provider=self._provider,
            client=self._client,
            scorer=self._scorer,
            attempt_log=log,
            gateway=self._gateway,
            secret=self._secret,
            settings=replace(
                self._settings,
                sampling=dict(sampling),
                policy_sampling=dict(policy_sampling or {}),
                prompts=current_prompts(Policies(self._home)) | dict(prompts or {}),
            ),
            store_keys=None if self._is_function else self._store_keys,
        )
        planned = list(plan_rollouts(self._run, mode, wave, tasks, rollouts_per_task))
        if self._store_keys is not None:
            self._store_keys.send_earlier_leftovers(rollout.identity for rollout in planned)
        self._open.add(attempts, planned, set(finished) - log.unfinished)

    def wait(
        self, *, enough_groups: int | None = None, on_result: OnResult | None = None
    ) -> WaveResult:
        """Run what was dispatched until it ends, and return the results that this call has seen.

        Args:
            enough_groups: groups whose end is enough; the rollouts of the others go on, and a later
                call returns their results. None: it waits for every rollout.
            on_result: called with each rollout's result.

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
        watch = GatewayWatch(self._client, self._settings.policy)
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
                    elif (running := in_flight.get(event[0].id)) is not None:
                        waited = watch.waited(running.attempt.id)
                        attempts = rollouts.attempts(running.rollout)
                        closers.submit(self._close_attempt, attempts, running, event[1], waited)
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
        while (rollout := next_rollout(executor, self._open.waiting)) is not None:
            if (lease := self._pool.acquire()) is None:
                self._open.waiting.push(rollout)
                return
            executor.submit(self._open.start(rollout, lease))

    def _close_attempt(
        self, attempts: Attempts, running: RunningAttempt, result: AttemptResult, waited: float
    ) -> None:
        try:
            closed = attempts.close(running, result, waited=waited)
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
        if self._is_function and self._store_keys is not None:
            environ = {**environ, **self._store_keys.run_environment(self._run)}
        return open_executor(
            self._agent,
            lambda attempt, result: self._events.put((attempt, result)),
            folder=self._folder,
            environ=environ,
            logs=rollout_logs(self._home),
            workers=self._workers,
            concurrency=self._concurrency,
            python=self._python,
            gateway=self._gateway,
            secret=self._secret,
            gateway_given_up=self._gateway_given_up,
            keep_open=self._keep_open,
        )
