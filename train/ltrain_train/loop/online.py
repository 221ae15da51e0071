"""The online run: a scheduler that generates waves, trains on them, publishes and validates.

A killed run continues from its journal and the store: it repeats the unfinished update, and runs
only the rollouts that its waves still lack.
"""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from ltrain_collector.store import Store
from ltrain_train.errors import NotFinite
from ltrain_train.loop.generation import Generation
from ltrain_train.loop.journal import Evaluated, Finished, Group, Journal, Published, Trained, Wave
from ltrain_train.loop.progress import Progress
from ltrain_train.loop.report import Phases
from ltrain_train.loop.retention import best_version, prune_versions, read_scores
from ltrain_train.loop.retry import retry_store
from ltrain_train.loop.update import Update, Updater
from ltrain_train.rollout import Runner, Task
from ltrain_train.schedule import ModeTrial, StopRule
from ltrain_transforms.datasets import Dataset, alarm_messages, build, dataset_folder
from ltrain_transforms.policy_file import read_base_digests
from ltrain_transforms.policy_lineage import Lineage
from ltrain_transforms.recipe import Recipe, Rollout

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
    notify: Callable[[str], None]
    """Called with sentences about the run."""
    version: int
    """The served policy version."""
    logs: Path
    """Folder of the logs of workers and commands."""
    progress: Progress = field(default_factory=lambda: Progress(enabled=False))

    _waves: dict[int, Future[Evaluated]] = field(default_factory=dict)
    """The training waves that were started, by number."""

    def run(self) -> Journal:
        """Validate, make the recipe's updates, and validate again.

        Raises:
            NothingToTrain: when a wave has no row to train on for a reason that would repeat in
                the next wave.
            RolloutsFailed: when every rollout of a training wave failed, or of a validation
                before any rollout of the run was ok.
            NotFinite: when `MAX_UNDONE` updates in a row were undone.
        """
        trial, began = ModeTrial(self.recipe.train.mode), time.monotonic()
        with self._generation() as generation:
            self._validate(generation)
            self.updater.learner.wait()
            while (number := self.journal.updates) < self.recipe.train.updates:
                if reason := self._stop_reason(time.monotonic() - began):
                    self.notify(f"The run ends after {number} updates: {reason}.")
                    break
                begins = time.monotonic()
                self._start_waves(generation, number, number + trial.waves_ahead)
                self._waves.pop(number).result()
                self._update(number)
                if choice := trial.add(time.monotonic() - begins):
                    self.notify(choice)
                every = self.recipe.train.validate_every
                if every and (number + 1) % every == 0:
                    self._validate(generation)
            self._validate(generation)
        self.journal.add(Finished())
        self._serve_best()
        return self.journal

    def _stop_reason(self, seconds: float) -> str:
        """Return why the run ends before its last update; '' if it goes on."""
        train, waves = self.recipe.train, self.journal.waves
        rule = StopRule(patience=train.patience, tokens=train.max_tokens, minutes=train.max_minutes)
        scores = [wave.score for wave in waves if wave.mode == "val" and wave.score is not None]
        tokens = sum(wave.tokens for wave in waves)
        return rule.reason(scores, tokens=tokens, minutes=seconds / 60)

    def _serve_best(self) -> None:
        """Make the version with the best validation score current, if the recipe asks for it."""
        if self.recipe.train.serve != "best":
            return
        policies, policy = self.updater.policies, self.journal.policy
        scores = read_scores(self.journal.folder.parent, policy)
        best = best_version(scores, policies.versions(policy))
        if best is None or best == self.version:
            return
        self.updater.serve(best)
        self.notify(
            f"Version {best} of '{policy}' is current, with the best validation score, "
            f"{scores[best].validation:.3f}; version {self.version} is the latest."
        )
        self.version = best

    def _generation(self) -> Generation:
        return Generation(
            recipe=self.recipe,
            rollout=self.rollout,
            journal=self.journal,
            store=self.store,
            runner=self.runner,
            tasks=self.tasks,
            validation=self.validation,
            version=lambda: self.version,
            logs=self.logs,
            progress=self.progress,
        )

    def _start_waves(self, generation: Generation, first: int, last: int) -> None:
        """Start the training waves from `first` to `last` that the run has and did not start."""
        for number in range(first, min(last, self.recipe.train.updates - 1) + 1):
            if number not in self._waves:
                self._waves[number] = generation.start("train", number)

    def _validate(self, generation: Generation) -> None:
        number = self.journal.updates
        if self.validation and self.journal.wave("val", number) is None:
            generation.start("val", number).result()
            self._report("val", number)

    def _update(self, number: int) -> None:
        """Train on the groups of a wave, publish the new version, and record both."""
        dataset = self._build(number)
        drops = dict(Counter(dataset.drops["reason"].to_list()))
        update = None
        if not (dataset.counts["samples"] == 0 and NO_SIGNAL_REASONS & drops.keys()):
            update = self._learn(number, dataset)
        published = None if update is None else update.version
        self.journal.add(self._trained(number, dataset, drops, update))
        if published is not None:
            self.version = published
            self.journal.add(Published(wave=number, version=published))
        self._prune()
        self._report("train", number)
        self._check_undone()

    def _trained(
        self, number: int, dataset: Dataset, drops: dict[str, int], update: Update | None
    ) -> Trained:
        alarms = [sentence for _, sentence in alarm_messages(dataset.manifest["alarms"])]
        fields: dict[str, Any] = {}
        if update is not None:
            alarms.extend(update.report.warnings)
            fields = {"undone": update.report.undone, "metrics": update.report.metrics}
            if update.version is not None:
                fields |= {"samples": update.report.rows, "tokens": update.report.tokens}
        return Trained(
            wave=number,
            dataset=dataset.id,
            changed=update is not None and update.version is not None,
            rules=_rule_means(dataset),
            drops=drops,
            alarms=tuple(alarms),
            seconds=self.phases.pop_seconds(),
            **fields,
        )

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

    def _learn(self, number: int, dataset: Dataset) -> Update:
        rows = dataset.counts["samples"]
        self.progress.show(f"wave train {number}: training on {rows} rows, then loading")
        checkpoints = self.journal.checkpoints
        return self.updater.update(dataset, self._lineage(), checkpoints, number)

    def _build(self, number: int) -> Dataset:
        run = self.journal.run
        out = dataset_folder(self.home, run, "train", number)
        base = read_base_digests(self.updater.policies.directory / self.journal.policy)
        # the journal lacks this wave, so a dataset that is there is of an update to be repeated
        options: dict[str, Any] = {"run": run, "base": base, "mode": "train", "replace": True}
        options |= self._selection(number)
        with self.phases.measure("build"):
            lineage = self._lineage()
            return retry_store(
                lambda: build(self.store, self.recipe, out, lineage=lineage, **options)
            )

    def _selection(self, number: int) -> dict[str, Any]:
        """Return how a build selects the groups of a wave: as the wave, if they are all of it."""
        groups = self.journal.completed["train", number]
        whole: list[Group] = [(number, task) for task in self.journal.dispatched("train", number)]
        if sorted(groups) == sorted(whole):
            return {"wave": number}
        return {"groups": sorted(f"{wave}/{task}" for wave, task in groups)}

    def _lineage(self) -> Lineage:
        folder = self.updater.policies.directory / self.journal.policy
        return Lineage.read(folder, self.version)

    def _report(self, mode: str, number: int) -> None:
        wave = self.journal.wave(mode, number)
        assert wave is not None, "a wave is reported when it is recorded"
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
