"""The rollouts of a run's waves, in a thread of their own: dispatched, completed and evaluated.

* Waves run one after the other, in the order of their start.
* A training wave is complete when `tasks_per_wave` groups have ended, in the order of a windowed
  FIFO. `spare_tasks` groups are left then; they go on and end in the next waves.
* A continued run goes on from the journal: what was dispatched is dispatched again, and the store
  says which rollouts have ended.
"""

import logging
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import groupby
from typing import Self

from ltrain_instrument.identity import Mode
from ltrain_train.errors import BadRun
from ltrain_train.rollout import Task
from ltrain_train.runs import (
    Dispatched,
    Evaluated,
    Group,
    Journal,
    Phases,
    PolicyScore,
    Progress,
    RolloutProgress,
    WaveRun,
    WaveSummary,
    group_scores,
    outcome_score,
    task_scores,
)
from ltrain_train.schedule import Refill, TaskSampler, WindowedFifo
from ltrain_train.workers import COUNTED_OUTCOMES
from ltrain_transforms.recipe import Reward, Rollout

_logger = logging.getLogger("ltrain.loop")


STOP_TIMEOUT = 5.0
"""Seconds that the end of a run waits for the thread; it may read the store for longer."""

_Job = tuple[Mode, int, Future[Evaluated]]


@dataclass(slots=True)
class Generation(AbstractContextManager["Generation"]):
    """The waves of rollouts of one run; use it in a `with` block."""

    waves: WaveRun
    rewards: Mapping[str, Sequence[Reward]]
    """The rewards of each trained policy; tasks are drawn by the scores of the first policy."""
    tasks: Sequence[Task]
    held_out: Mapping[Mode, Sequence[Task]]
    """The tasks of validations and of tests, by their mode."""
    versions: Callable[[], dict[str, int]]
    """Returns the served version of each trained policy."""
    progress: Progress
    _jobs: queue.SimpleQueue[_Job | None] = field(default_factory=queue.SimpleQueue)
    _phases: Phases = field(default_factory=Phases)
    _stopped: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread = field(init=False)
    _sampler: TaskSampler[Task] = field(init=False)
    _fifo: WindowedFifo[Group] = field(init=False)
    _resumed: bool = False

    def __post_init__(self) -> None:
        """Prepare the sampler and the FIFO as the journal's events left them."""
        rollout = self.rollout
        self._sampler = TaskSampler(
            self.tasks,
            seed=rollout.seed,
            domains=rollout.domains,
            target_score=rollout.target_score,
        )
        self._thread = threading.Thread(target=self._work, name="generation", daemon=True)
        waves = set[int]()
        for event in self.journal.events:
            if isinstance(event, Dispatched) and event.mode == "train":
                if event.wave not in waves:
                    self._sampler.begin_wave()
                    waves.add(event.wave)
                self._sampler.draw(len(event.tasks))
            elif isinstance(event, Evaluated) and event.mode == "train":
                self._add_scores(event)
        size = rollout.tasks_per_wave + rollout.spare_tasks + rollout.refill_tasks
        self._fifo = WindowedFifo(size, rollout.release_window or size)

    @property
    def journal(self) -> Journal:
        """The journal of the run."""
        return self.waves.journal

    @property
    def rollout(self) -> Rollout:
        """The recipe's rollout section."""
        rollout = self.waves.recipe.rollout
        assert rollout is not None, "the plan has checked it"
        return rollout

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self.waves.runner.stop()
        self._jobs.put(None)
        self._thread.join(STOP_TIMEOUT)

    def start(self, mode: Mode, number: int) -> Future[Evaluated]:
        """Start a wave after those that were started before; return its evaluation to come.

        The future raises:
            RolloutsFailed: when every rollout of a training wave failed, or of a held-out one
                before any rollout of the run was ok.
            errors of `Runner.wait`.
        """
        future = Future[Evaluated]()
        self._jobs.put((mode, number, future))
        return future

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None and not self._stopped.is_set():
            mode, number, future = job
            try:
                future.set_result(self._run_wave(mode, number))
            except BaseException as error:  # the thread that waits for the wave raises it
                future.set_exception(error)

    def _run_wave(self, mode: Mode, number: int) -> Evaluated:
        """Return the evaluation of a wave, from the journal if it is there."""
        if (mode, number) in self.journal.evaluated:
            return self.journal.evaluated[mode, number]
        versions = self.versions()
        if (mode, number) not in self.journal.completed:
            training = mode == "train"
            groups = self._run_groups(number) if training else self._run_held_out(mode, number)
            self.waves.complete(mode, number, groups)
        evaluated = self._evaluate(mode, number, versions)
        self.journal.add(evaluated)
        if mode == "train":
            self._add_scores(evaluated)
        return evaluated

    def _add_scores(self, evaluated: Evaluated) -> None:
        first, *_ = evaluated.policies.values()
        self._sampler.add_scores(first.tasks)

    def _run_held_out(self, mode: Mode, number: int) -> list[Group]:
        tasks = self.held_out[mode]
        if not self.journal.dispatched(mode, number):
            self.waves.record_dispatch(mode, number, tasks)
        self.waves.dispatch(mode, number, tasks)
        self._wait(mode, number)
        return [(number, task.id) for task in tasks]

    def _run_groups(self, number: int) -> list[Group]:
        """Run a training wave, refills included, and return the groups that it releases.

        The last wave of the run leaves no group.
        """
        is_last = number + 1 >= self.waves.recipe.train.updates
        tasks_per_wave = self.rollout.tasks_per_wave
        spare = 0 if is_last else self.rollout.spare_tasks
        self._resume()
        if not self.journal.dispatched("train", number):
            self._sampler.begin_wave()
            self._draw(number, tasks_per_wave + spare - len(self._fifo))
        released: list[Group] = []
        wanted = min(tasks_per_wave, len(self._fifo)) if spare else len(self._fifo)
        while len(released) < wanted:
            released += self._release(number, wanted - len(released))
            if len(released) == wanted:
                wanted += self._draw(number, self._missing_groups(number))
        return released

    def _release(self, number: int, most: int) -> list[Group]:
        """Run groups until one or more can be released, and return at most `most` of them."""
        while not (ended := self._fetch(most)):
            self._wait("train", number, enough_groups=most)
        return ended

    def _fetch(self, most: int) -> list[Group]:
        is_open = self.waves.runner.open_groups
        for running in self._fifo:
            if ("train", *running) not in is_open:
                self._fifo.finish(running)
        released: list[Group] = []
        while len(released) < most and (group := self._fifo.fetch()) is not None:
            released.append(group)
        return released

    def _resume(self) -> None:
        """Dispatch what an earlier process left open."""
        if self._resumed:
            return
        self._resumed = True
        known = {task.id: task for task in self.tasks}
        for wave, groups in groupby(self.journal.open_groups(), key=lambda group: group[0]):
            ids = [task for _, task in groups]
            if missing := [task for task in ids if task not in known]:
                raise BadRun(
                    f"Run '{self.journal.run}' has begun wave {wave} with task '{missing[0]}', "
                    f"which {self.rollout.tasks} no longer has. Add it again, or start another run "
                    "with another source.run."
                )
            self._start_groups(wave, [known[task] for task in ids])

    def _draw(self, number: int, count: int) -> int:
        """Draw and dispatch at most `count` more tasks of a wave, and return their number."""
        tasks = self._sampler.draw(count)
        if tasks:
            self.waves.record_dispatch("train", number, tasks)
            self._start_groups(number, tasks)
        return len(tasks)

    def _start_groups(self, wave: int, tasks: Sequence[Task]) -> None:
        for task in tasks:
            self._fifo.start((wave, task.id))
        self.waves.dispatch("train", wave, tasks)

    def _wait(self, mode: Mode, number: int, *, enough_groups: int | None = None) -> None:
        counter = RolloutProgress(self.progress, mode, number, self.waves.runner.open_rollouts)
        with self._phases.measure("generate"):
            self.waves.runner.wait(enough_groups=enough_groups, on_result=counter.add)

    def _missing_groups(self, number: int) -> int:
        """Return how many tasks a wave draws in place of those without spread for any policy."""
        if not self.rollout.refill_tasks:
            return 0
        tasks = self.journal.dispatched("train", number)
        summary = self.waves.summarize("train", [(number, task) for task in tasks])
        if not summary.outcomes.get("ok"):
            return 0
        refill = Refill(self.rollout.tasks_per_wave, self.rollout.refill_tasks)
        scores = (group_scores(rewards, summary.counted) for rewards in self.rewards.values())
        return min(refill.missing({task: each.get(task, []) for task in tasks}) for each in scores)

    def _evaluate(self, mode: Mode, number: int, versions: Mapping[str, int]) -> Evaluated:
        with self._phases.measure("settle"):
            summary = self.waves.settle(mode, number)
        evaluations = summary.evaluations
        if summary.rollouts and not summary.outcomes.get("ok"):
            self._report_failed(mode, number, summary)
            if COUNTED_OUTCOMES & summary.outcomes.keys():
                evaluations = self._zero_evaluations()
        scores = {
            name: PolicyScore(
                version=versions[name],
                score=outcome_score(rewards, evaluations),
                tasks=task_scores(rewards, summary.counted),
            )
            for name, rewards in self.rewards.items()
        }
        own = {"evaluations": evaluations, "phases": self._phases.pop()}
        return self.waves.evaluated(mode, number, summary, policies=scores, **own)

    def _report_failed(self, mode: Mode, number: int, summary: WaveSummary) -> None:
        """Log a warning that every rollout of a held-out wave failed."""
        if mode == "train" or not self.waves.any_ok():
            raise self.waves.fail(mode, number, summary)
        failures = self.waves.describe_failures(summary)
        _logger.warning("ltrain: every rollout of wave %s %d failed. %s", mode, number, failures)

    def _zero_evaluations(self) -> dict[str, float]:
        """Return 0 for each evaluation of the latest wave that has some."""
        recorded = (wave.evaluations for wave in reversed(self.journal.evaluated.values()))
        return dict.fromkeys(next(filter(None, recorded), {}), 0.0)
