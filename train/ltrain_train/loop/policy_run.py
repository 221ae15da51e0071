"""One policy of an online run: a wave's dataset is built, trained on, published and recorded."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from ltrain_collector.store import Store
from ltrain_instrument.quantity import quantity
from ltrain_train.errors import NotFinite, WaveMismatch
from ltrain_train.publishing import best_version, prune_versions, read_scores
from ltrain_train.runs import (
    Group,
    Journal,
    PolicyJournal,
    Published,
    Served,
    Trained,
    Wave,
    record_alarms,
    retry_store,
    wave_alarms,
)
from ltrain_train.updates import Update, Updater
from ltrain_transforms.alarms import read_figures, rule_means
from ltrain_transforms.datasets import Dataset, build, dataset_folder
from ltrain_transforms.ended_rollout import EndedRollout
from ltrain_transforms.policy_file import read_base_digests
from ltrain_transforms.policy_lineage import Lineage
from ltrain_transforms.recipe import Recipe
from ltrain_transforms.rendering import find_served
from ltrain_transforms.reports import count_prompts

NO_SIGNAL_REASONS = frozenset({"no_spread"})
"""Drop reasons with which a wave may have no row and the run continues: all rewards within each
group are equal, as they are for a good policy."""

EXECUTION_STAGES = ("executions", "groups", "rows")
"""The stages with drops of whole executions, as of one that made no call."""

MAX_UNDONE = 3
"""Undone updates in a row that end the run: the next ones would not go better."""

NAMED = 3
"""Rollouts that the error names."""


@dataclass(slots=True)
class PolicyRun:
    """One policy of an online run, and its served version."""

    journal: Journal
    store: Store
    updater: Updater
    home: Path
    folder: Path
    """Folder of the recipe's files."""
    show: Callable[[str], None]
    """Shows what the run does right now."""
    version: int
    """The served version."""

    @property
    def recipe(self) -> Recipe:
        """The recipe of the policy."""
        return self.updater.recipe

    @property
    def name(self) -> str:
        """The policy."""
        return self.updater.policy

    @property
    def own(self) -> PolicyJournal:
        """The part of the run's journal on the policy."""
        return self.journal.of(self.name)

    def update(self, number: int) -> Wave:
        """Train on the groups of a wave, publish the new version, and record both."""
        dataset = self._build(number)
        drops = dict(Counter(dataset.drops["reason"].to_list()))
        update = None
        if not (dataset.counts["samples"] == 0 and NO_SIGNAL_REASONS & drops.keys()):
            update = self._learn(number, dataset)
        published = None if update is None else update.version
        self.journal.add(self._with_alarms(self._trained(number, dataset, drops, update), dataset))
        if published is not None:
            self.version = published
            self.journal.add(Published(policy=self.name, wave=number, version=published))
        self._prune()
        wave = self.own.wave("train", number)
        assert wave is not None, "it was recorded"
        return wave

    def serve_best(self) -> str:
        """Make the version with the best validation score current, if the recipe asks for it.

        Return a sentence about it; '' if the latest version stays.
        """
        if self.recipe.train.serve != "best":
            return ""
        scores = read_scores(self.journal.folder.parent, self.name)
        best = best_version(scores, self.updater.policies.versions(self.name))
        if best is None or best == self.version:
            return ""
        if self.own.served != best:
            self.journal.add(Served(policy=self.name, version=best))
        self.updater.serve(best)
        latest, self.version = self.version, best
        return (
            f"Version {best} of '{self.name}' is current, with the best validation score, "
            f"{scores[best].validation:.3f}; version {latest} is the latest."
        )

    def _trained(
        self, number: int, dataset: Dataset, drops: dict[str, int], update: Update | None
    ) -> Trained:
        fields: dict[str, Any] = {}
        if update is not None:
            report = update.report
            fields = {"undone": report.undone, "metrics": report.metrics, "alarms": report.warnings}
            if update.version is not None:
                fields |= {"samples": update.report.rows, "tokens": update.report.tokens}
        return Trained(
            policy=self.name,
            wave=number,
            dataset=dataset.id,
            changed=update is not None and update.version is not None,
            rules=rule_means(dataset.scan),
            drops=drops,
            prompts=dict(count_prompts(dataset.scan("calls")).iter_rows()),
            figures=read_figures(dataset.scan),
            phases=self.updater.phases.pop(),
            **fields,
        )

    def _with_alarms(self, trained: Trained, dataset: Dataset) -> Trained:
        """Record the alarms of a wave as spans, and return the event with them."""
        evaluated = self.journal.evaluated["train", trained.wave]
        wave = Wave.of(self.name, evaluated, trained)
        alarms = wave_alarms(self.own, wave, dataset, self.recipe.reward)
        record_alarms(
            self.updater.tracer,
            alarms,
            run=self.journal.run,
            mode=wave.mode,
            policy=self.name,
            version=wave.version,
            dataset=wave.dataset,
        )
        sentences = (*(alarm.sentence for alarm in alarms), *trained.alarms)
        raised = tuple(alarm.key for alarm in alarms)
        return trained.model_copy(update={"alarms": sentences, "raised": raised})

    def check_undone(self) -> None:
        """Check that the latest updates were not all undone."""
        latest = [wave for wave in self.own.waves if wave.mode == "train"][-MAX_UNDONE:]
        undone = [wave for wave in latest if wave.undone and wave.published is None]
        if len(undone) == MAX_UNDONE:
            raise NotFinite(
                f"The last {MAX_UNDONE} updates of '{self.name}' were undone; it is still "
                f"v{self.version}. {undone[-1].alarms[-1]}"
            )

    def _learn(self, number: int, dataset: Dataset) -> Update:
        rows = dataset.counts["samples"]
        self.show(
            f"wave train {number}: training '{self.name}' on {quantity(rows, 'row')}, then loading"
        )
        return self.updater.update(dataset, self._lineage(), self.own.checkpoints, number)

    def _build(self, number: int) -> Dataset:
        run = self.journal.run
        of_several = self.name if len(self.journal.policies) > 1 else None
        out = dataset_folder(self.home, run, "train", number, of_several)
        policies = self.updater.policies.directory
        base = read_base_digests(policies / self.name)
        served = find_served(self.recipe, policies, self.folder)
        # the journal lacks this wave, so a dataset that is there is of an update to be repeated
        options: dict[str, Any] = {"run": run, "base": base, "mode": "train", "replace": True}
        options |= {"served": served, **self._selection(number)}
        with self.updater.phases.measure("build"):
            lineage = self._lineage()
            dataset = retry_store(
                lambda: build(self.store, self.recipe, out, lineage=lineage, **options)
            )
            require_rollouts(dataset, self.journal.completed["train", number].rollouts)
            return dataset

    def _selection(self, number: int) -> dict[str, Any]:
        """Return how a build selects the groups of a wave: as the wave, if they are all of it."""
        groups = self.journal.completed["train", number].groups
        whole: list[Group] = [(number, task) for task in self.journal.dispatched("train", number)]
        if groups == sorted(whole):
            return {"wave": number}
        return {"groups": sorted(f"{wave}/{task}" for wave, task in groups)}

    def _lineage(self) -> Lineage:
        return Lineage.read(self.updater.policies.directory / self.name, self.version)

    def _prune(self) -> None:
        """Remove the versions that are not kept; the learner may load its base again."""
        updater, runs = self.updater, self.journal.folder.parent
        in_use = {self.version, updater.learner.base}
        keep = self.recipe.train.keep_versions
        prune_versions(updater.policies, self.name, runs, keep=keep, in_use=in_use)


def require_rollouts(dataset: Dataset, rollouts: Collection[EndedRollout]) -> None:
    """Check that each rollout of a wave is compared or dropped, with the outcome that it had.

    Raises:
        WaveMismatch: when the dataset lacks a rollout, has another one, or another outcome of one.
    """
    known = {f"{each.rollout}.{each.attempt}": each.outcome for each in rollouts}
    # agents may make rollouts up; the dataset drops those
    latest = dataset.scan("executions").filter("dispatched", ~pl.col("superseded"))
    built = dict(latest.select("execution_id", "outcome").collect().iter_rows())
    transitions = dataset.scan("transitions").select("execution_id").unique().collect()
    dropped = dataset.drops.filter(pl.col("stage").is_in(EXECUTION_STAGES))["id"]
    accounted = {*transitions["execution_id"], *dropped}
    faults = {
        "it lacks": known.keys() - built.keys(),
        "it has, and the run has not,": built.keys() - known.keys(),
        "the outcome differs of": {
            each for each in known.keys() & built.keys() if known[each] != built[each]
        },
        "they are neither compared nor dropped:": (known.keys() & built.keys()) - accounted,
    }
    if found := [f"{what} {_name(ids)}" for what, ids in faults.items() if ids]:
        raise WaveMismatch(
            f"Dataset {dataset.id} does not have the {len(known)} rollouts of its wave: "
            f"{'; '.join(found)}. Run the same command again; if that does not help, report it."
        )


def _name(ids: Iterable[str]) -> str:
    first, *others = sorted(ids)
    named = ", ".join([first, *others[: NAMED - 1]])
    return f"{named} and {len(others) + 1 - NAMED} more" if len(others) >= NAMED else named
