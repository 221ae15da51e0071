"""The online run: for each wave it runs rollouts, builds a dataset, trains and publishes.

A killed run continues from its journal and the store: it repeats the unfinished update, and runs
only the rollouts that the wave still lacks.
"""

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from ltrain_collector.store import Store
from ltrain_instrument.identity import Mode, rollout_id
from ltrain_train.errors import NotFinite, RolloutsFailed
from ltrain_train.loop.journal import Journal, Wave
from ltrain_train.loop.progress import Progress, RolloutProgress
from ltrain_train.loop.report import Phases
from ltrain_train.loop.retention import prune_versions
from ltrain_train.loop.retry import retry_store
from ltrain_train.loop.update import Updater
from ltrain_train.loop.wave_summary import group_scores, outcome_score, summarize_wave, task_scores
from ltrain_train.rollout import Runner, Task, describe_failures, finished_rollouts
from ltrain_train.schedule import Refill, TaskSampler
from ltrain_train.workers import COUNTED_OUTCOMES
from ltrain_transforms.datasets import Dataset, alarm_messages, build, dataset_folder
from ltrain_transforms.policy_file import read_base_digests
from ltrain_transforms.policy_lineage import Lineage
from ltrain_transforms.recipe import Recipe, Rollout
from ltrain_transforms.source import wait_complete
from ltrain_transforms.traces import sender_roles

_logger = logging.getLogger("ltrain.loop")

TRAIN_SAMPLING = {"temperature": 1.0}
"""Sampling in mode `train` unless the recipe sets it: the policy's own distribution."""

NO_SIGNAL_REASONS = frozenset({"no_spread"})
"""Drop reasons with which a wave may have no row and the run continues: all rewards within each
group are equal, as they are for a good policy."""

MAX_UNDONE = 3
"""Undone updates in a row that end the run: the next ones would not go better."""


@dataclass(slots=True)
class OnlineRun:
    """One online run with its services and its journal."""

    recipe: Recipe
    rollout: Rollout
    journal: Journal
    store: Store
    runner: Runner
    updater: Updater
    phases: Phases
    tasks: Sequence[Task]
    validation: Sequence[Task]
    home: Path
    on_wave: Callable[[Wave], None]
    version: int
    """The served policy version."""
    logs: Path
    """Folder of the logs of workers and commands."""
    progress: Progress = field(default_factory=lambda: Progress(enabled=False))

    def run(self) -> Journal:
        """Validate, make the recipe's updates, and validate again.

        Raises:
            NothingToTrain: when a wave has no row to train on for a reason that would repeat in
                the next wave.
            RolloutsFailed: when every rollout of a training wave failed, or of a validation
                before any rollout of the run was ok.
            NotFinite: when `MAX_UNDONE` updates in a row were undone.
        """
        sampler = self._sampler()
        self._validate()
        self.updater.learner.wait()
        for update in range(self.journal.updates, self.recipe.train.updates):
            self._update(update, sampler)
            every = self.recipe.train.validate_every
            if (every and (update + 1) % every == 0) or update + 1 == self.recipe.train.updates:
                self._validate()
        self.journal.finish()
        return self.journal

    def _validate(self) -> None:
        number = self.journal.updates
        if not self.validation or self.journal.wave("val", number):
            return
        self._generate("val", number, self.validation, rollouts_per_task=1)
        self._record(self._summarize("val", number))

    def _sampler(self) -> TaskSampler[Task]:
        """Return the sampler of tasks, which has drawn those of the journal's training waves."""
        rollout = self.rollout
        sampler = TaskSampler(
            self.tasks,
            seed=rollout.seed,
            domains=rollout.domains,
            target_score=rollout.target_score,
        )
        for wave in self.journal.waves:
            if wave.mode == "train":
                sampler.begin_wave()
                sampler.draw(wave.drawn)
                sampler.add_scores(wave.tasks)
        return sampler

    def _update(self, number: int, sampler: TaskSampler[Task]) -> None:
        sampler.begin_wave()
        tasks = self._generate_groups(number, sampler)
        wave = self._summarize("train", number)
        wave.drawn = len(tasks)
        sampler.add_scores(wave.tasks)
        dataset = self._build(number)
        wave.dataset, wave.rules = dataset.id, _rule_means(dataset)
        wave.alarms = [sentence for _, sentence in alarm_messages(dataset.manifest["alarms"])]
        wave.drops = dict(Counter(dataset.drops["reason"].to_list()))
        if not (dataset.counts["samples"] == 0 and NO_SIGNAL_REASONS & wave.drops.keys()):
            self._learn(wave, dataset)
        self._record(wave)
        self._check_undone()

    def _generate_groups(self, number: int, sampler: TaskSampler[Task]) -> list[Task]:
        """Run the rollouts of a training wave, refills included, and return its tasks."""
        sampling = TRAIN_SAMPLING | self.recipe.policy[0].sampling
        tasks: list[Task] = []
        more = sampler.draw(self.rollout.tasks_per_wave)
        while more:
            self._generate("train", number, more, self.rollout.rollouts_per_task, **sampling)
            tasks += more
            more = sampler.draw(self._missing_groups(number, tasks))
        return tasks

    def _missing_groups(self, number: int, tasks: Sequence[Task]) -> int:
        """Return how many tasks the wave draws in place of those without spread."""
        if not self.rollout.refill_tasks:
            return 0
        run, trust = self.journal.run, self.recipe.source.trust
        summary = retry_store(lambda: summarize_wave(self.store, run, "train", number, trust))
        if not summary.outcomes.get("ok"):
            return 0
        # a run that was killed has stored rollouts of refills, which are not drawn again yet
        stored = group_scores(self.recipe.reward, summary.counted)
        scores = {task.id: stored.get(task.id, []) for task in tasks}
        return Refill(self.rollout.tasks_per_wave, self.rollout.refill_tasks).missing(scores)

    def _check_undone(self) -> None:
        """Check that the latest updates were not all undone.

        Raises:
            NotFinite: when they were.
        """
        latest = [wave for wave in self.journal.waves if wave.mode == "train"][-MAX_UNDONE:]
        undone = [wave for wave in latest if wave.undone and wave.published is None]
        if len(undone) == MAX_UNDONE:
            raise NotFinite(
                f"The last {MAX_UNDONE} updates were undone; the policy is still v{self.version}. "
                f"{undone[-1].alarms[-1]}"
            )

    def _learn(self, wave: Wave, dataset: Dataset) -> None:
        rows = dataset.counts["samples"]
        self.progress.show(f"wave train {wave.wave}: training on {rows} rows, then loading")
        update = self.updater.update(dataset, self._lineage(), self.journal.checkpoints, wave.wave)
        if update.version is not None:
            self.version = wave.published = update.version
            wave.samples, wave.tokens = update.report.rows, update.report.tokens
        wave.undone = update.report.undone
        wave.alarms.extend(update.report.warnings)
        wave.metrics = dict(update.report.metrics)

    def _generate(
        self,
        mode: Mode,
        number: int,
        tasks: Sequence[Task],
        rollouts_per_task: int,
        **sampling: float,
    ) -> None:
        run, trust = self.journal.run, self.recipe.source.trust
        ids = [
            rollout_id(run, mode, number, task.id, sample)
            for task in tasks
            for sample in range(rollouts_per_task)
        ]
        with self.phases.measure("generate"):
            since = self.journal.failed_at
            stored = retry_store(
                lambda: finished_rollouts(self.store, run, mode, number, trust, since=since)
            )
            finished = stored.keys() & set(ids)
            counter = RolloutProgress(self.progress, mode, number, len(ids) - len(finished))
            self.runner.run(
                mode,
                number,
                tasks,
                rollouts_per_task,
                sampling=sampling,
                finished=finished,
                on_result=counter.add,
            )
        with self.phases.measure("settle"):
            span_timeout, senders = (
                self.recipe.train.span_timeout,
                sender_roles.trusted_senders(trust),
            )
            retry_store(lambda: wait_complete(self.store, ids, span_timeout, senders))

    def _build(self, number: int) -> Dataset:
        run = self.journal.run
        out = dataset_folder(self.home, run, "train", number)
        base = read_base_digests(self.updater.policies.directory / self.journal.policy)
        options: dict[str, Any] = {"run": run, "wave": number, "base": base}
        # the journal lacks this wave, so a dataset that is there is of an update to be repeated
        options |= {"mode": "train", "replace": True}
        with self.phases.measure("build"):
            lineage = self._lineage()
            return retry_store(
                lambda: build(self.store, self.recipe, out, lineage=lineage, **options)
            )

    def _lineage(self) -> Lineage:
        folder = self.updater.policies.directory / self.journal.policy
        return Lineage.read(folder, self.version)

    def _summarize(self, mode: str, number: int) -> Wave:
        run, trust = self.journal.run, self.recipe.source.trust
        summary = retry_store(lambda: summarize_wave(self.store, run, mode, number, trust))
        failures = ""
        if summary.failures:
            failures = describe_failures(summary.failures, summary.rollouts, self.logs)
        evaluations = summary.evaluations
        if summary.rollouts and not summary.outcomes.get("ok"):
            self._report_failed(mode, number, failures)
            if COUNTED_OUTCOMES & summary.outcomes.keys():
                evaluations = self._zero_evaluations()
        return Wave(
            mode=mode,
            wave=number,
            version=self.version,
            rollouts=summary.rollouts,
            outcomes=summary.outcomes,
            evaluations=evaluations,
            score=outcome_score(self.recipe.reward, evaluations),
            tasks=task_scores(self.recipe.reward, summary.counted),
            failures=failures,
        )

    def _report_failed(self, mode: str, number: int, failures: str) -> None:
        """Log a warning that every rollout of a validation failed.

        Raises:
            RolloutsFailed: for a training wave, or if no rollout of the run was ok before.
        """
        if mode == "train" or not any(wave.outcomes.get("ok") for wave in self.journal.waves):
            self.journal.repeat_wave()
            raise RolloutsFailed(
                f"Every rollout of wave {mode} {number} failed, so nothing can be learned from it. "
                f"{failures}\nFix the cause; the same command then tries these rollouts again."
            )
        _logger.warning("ltrain: every rollout of wave %s %d failed. %s", mode, number, failures)

    def _zero_evaluations(self) -> dict[str, float]:
        """Return 0 for each evaluation of the latest wave that has some."""
        recorded = (wave.evaluations for wave in reversed(self.journal.waves))
        return dict.fromkeys(next(filter(None, recorded), {}), 0.0)

    def _record(self, wave: Wave) -> None:
        wave.seconds = self.phases.pop_seconds()
        self.journal.add(wave)
        self._prune()
        self.on_wave(wave)

    def _prune(self) -> None:
        """Remove the versions that are not kept; the learner may load its base again."""
        updater, runs = self.updater, self.journal.folder.parent
        in_use = {self.version, updater.base}
        keep = self.recipe.train.keep_versions
        prune_versions(updater.policies, self.journal.policy, runs, keep=keep, in_use=in_use)


def _rule_means(dataset: Dataset) -> dict[str, float]:
    """Return the mean of each rule's rewards over the executions."""
    executions = max(dataset.table("executions").height, 1)
    rules = dataset.table("rewards").filter(pl.col("source") == "rule")
    sums = rules.group_by("rule").agg(pl.col("value").sum())
    return {name: value / executions for name, value in sums.iter_rows()}
