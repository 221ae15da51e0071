"""The online run: waves of rollouts, each stored, built, learned from and served again.

What a killed run did is in its journal and in the store: it goes on with the update it was in, and
asks only for the rollouts that wave still lacks.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from ltrain_collector.store import Store
from ltrain_instrument.identity import Mode, rollout_id
from ltrain_train.loop.journal import Journal, Wave
from ltrain_train.loop.patience import patiently
from ltrain_train.loop.phases import Phases
from ltrain_train.loop.standing import standing
from ltrain_train.loop.update import Updater
from ltrain_train.loop.waves import tasks_of
from ltrain_train.rollout.runner import Runner, finished
from ltrain_train.rollout.tasks import Task
from ltrain_transforms import roles
from ltrain_transforms.barrier import wait_complete
from ltrain_transforms.build import build
from ltrain_transforms.dataset import Dataset
from ltrain_transforms.recipe import Recipe, Rollout
from ltrain_transforms.selective_drops import alarm_messages

IMPOSED = {"temperature": 1.0}
"""Sampling in mode `train` unless the recipe says otherwise: the policy itself, nothing cut off."""

UNDECIDED = frozenset({"no_spread"})
"""Why a wave may teach nothing and the run goes on: its groups agree, as a good policy's do."""


@dataclass(slots=True)
class Online:
    recipe: Recipe
    rollout: Rollout
    journal: Journal
    store: Store
    runner: Runner
    updater: Updater
    phases: Phases
    tasks: Sequence[Task]
    validation: Sequence[Task]
    datasets: Path
    say: Callable[[Wave], None]
    version: int
    """The version that is served."""

    def run(self) -> Journal:
        """Validate, make the recipe's updates, validate again.

        Raises:
            NothingToTrain: when a wave gives no row and not because its groups agree: the next
                would be the same.
        """
        self._validate()
        self.updater.learner.wait()
        for update in range(self.journal.updates, self.recipe.train.updates):
            self._update(update)
            every = self.recipe.train.validate_every
            if (every and (update + 1) % every == 0) or update + 1 == self.recipe.train.updates:
                self._validate()
        self.journal.finish()
        return self.journal

    def _validate(self) -> None:
        number = self.journal.updates
        if not self.validation or self.journal.wave("val", number):
            return
        self._generate("val", number, self.validation, per_task=1)
        self._add(self._seen("val", number))

    def _update(self, number: int) -> None:
        tasks = tasks_of(number, self.tasks, self.rollout.tasks_per_wave, seed=self.rollout.seed)
        sampling = IMPOSED | self.recipe.policy[0].sampling
        self._generate("train", number, tasks, self.rollout.rollouts_per_task, **sampling)
        dataset = self._build(number)
        wave = self._seen("train", number)
        wave.dataset, wave.rules = dataset.id, _rules(dataset)
        wave.alarms = [message for _, message in alarm_messages(dataset.manifest["alarms"])]
        wave.drops = dict(Counter(dataset.drops["reason"].to_list()))
        if not (dataset.counts["samples"] == 0 and UNDECIDED & wave.drops.keys()):
            self._learn(wave, dataset)
        self._add(wave)

    def _learn(self, wave: Wave, dataset: Dataset) -> None:
        done = self.updater.update(dataset, self.version, self.journal.next_checkpoint)
        self.version = wave.published = done.version
        wave.samples, wave.tokens = done.report.rows, done.report.tokens
        wave.metrics = dict(done.report.metrics)

    def _generate(
        self, mode: Mode, number: int, tasks: Sequence[Task], per_task: int, **sampling: float
    ) -> None:
        run, trust = self.journal.run, self.recipe.source.trust
        with self.phases.phase("generate"):
            done = patiently(lambda: finished(self.store, run, mode, number, trust))
            self.runner.run(mode, number, tasks, per_task, sampling=sampling, finished=done)
        with self.phases.phase("settle"):
            ids = [
                rollout_id(run, mode, number, task.id, sample)
                for task in tasks
                for sample in range(per_task)
            ]
            timeout, senders = self.recipe.train.span_timeout, roles.trusted_senders(trust)
            patiently(lambda: wait_complete(self.store, ids, timeout, senders))

    def _build(self, number: int) -> Dataset:
        run, out = self.journal.run, self.datasets / f"{self.journal.run}-{number}"
        with self.phases.phase("build"):
            return patiently(lambda: build(self.store, self.recipe, out, run=run, wave=number))

    def _seen(self, mode: str, number: int) -> Wave:
        run, trust = self.journal.run, self.recipe.source.trust
        stands = patiently(lambda: standing(self.store, run, mode, number, trust))
        return Wave(
            mode=mode,
            wave=number,
            version=self.version,
            rollouts=stands.rollouts,
            outcomes=stands.outcomes,
            evaluations=stands.evaluations,
        )

    def _add(self, wave: Wave) -> None:
        wave.seconds = self.phases.read()
        self.journal.add(wave)
        self.journal.prune()
        self.say(wave)


def _rules(dataset: Dataset) -> dict[str, float]:
    """Give the mean over the executions of what each rule gave."""
    executions = max(dataset.table("executions").height, 1)
    rules = dataset.table("rewards").filter(pl.col("source") == "rule")
    summed = rules.group_by("rule").agg(pl.col("value").sum())
    return {name: value / executions for name, value in summed.iter_rows()}
