"""The store's spans -> a dataset, in bounded memory, the same whatever the number of workers."""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import polars as pl

from ltrain_collector.store import Store
from ltrain_transforms import phases, selective_drops
from ltrain_transforms.absence import empty_selection, explain_query_errors
from ltrain_transforms.batches import SPANS_PER_BATCH, plan_batches
from ltrain_transforms.dataset import Dataset
from ltrain_transforms.digest import BITS, dataset_id
from ltrain_transforms.manifest import MANIFEST, SCHEMA_VERSION, Manifest
from ltrain_transforms.parts import Draft, Part, draft
from ltrain_transforms.recipe import Recipe
from ltrain_transforms.source import ExecutionBatch, Selection, read_spans, spans_query, watermark
from ltrain_transforms.tables import TABLES
from ltrain_transforms.waves import WaveStates, are_unchanged, has_late_spans, read_waves
from ltrain_transforms.workers import Here, Workers

Progress = Callable[[str, int, int], None]
"""Is told the phase, and how many of how many batches are done."""


def silent(phase: str, done: int, total: int) -> None:
    """Say nothing."""


def build(
    store: Store,
    recipe: Recipe,
    out: Path,
    *,
    run: str | None = None,
    mode: str | None = "train",
    wave: int | None = None,
    base: Mapping[str, str] | None = None,
    update: bool = False,
    workers: Workers | None = None,
    spans_a_batch: int = SPANS_PER_BATCH,
    progress: Progress = silent,
) -> Dataset:
    """Make a dataset of what `store` holds and write it to `out`, in place of one that is there.

    Args:
        run: instead of the recipe's `source.run`.
        mode: train, val or prod; None is all.
        base: digests of base model, tokenizer and chat template, for the manifest.
        update: keep the waves that the dataset in `out` has, if all is as it was, and add
            those that have been closed since; else all is built.
        workers: who does the work; None is this process.
        spans_a_batch: about how many spans are in memory together; changes no row.

    Raises:
        NothingToBuild: when the recipe's source selects no execution.
        NoDataset: when `out` is there and is no dataset.
        Unwritable: when `out` cannot be written, or the disk is full.
    """
    question = Question(store, recipe, Selection(run=run, mode=mode, wave=wave), dict(base or {}))
    planned = _plan(question, out, update, spans_a_batch)
    with draft(out) as folder:
        work = _Build(question, planned, folder, workers or Here(), progress)
        if planned.known is not None:
            work.keep(out, planned.known)
        work.trace()
        work.credit()
        work.join()
        manifest = work.manifest()
        (folder.folder / MANIFEST).write_text(manifest.text())
    return Dataset(manifest.id, out, manifest.counts)


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked of a store."""

    store: Store
    recipe: Recipe
    selection: Selection
    base: dict[str, str]

    def manifest(self) -> dict[str, Any]:
        """Give what the manifest says of it."""
        sql, parameters = spans_query(self.recipe.source, self.selection)
        return {
            "store": self.store.name,
            "query": sql,
            "parameters": parameters,
            "recipe": self.recipe.model_dump(mode="json", by_alias=True),
            "recipe_digest": self.recipe.digest,
            "base": self.base,
        }


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be done."""

    watermark: str
    waves: WaveStates
    batches: list[ExecutionBatch]
    selection: Selection
    """What of the question is not there already."""
    newest: int | None
    """When the newest of all selected spans ended, in nanoseconds."""
    known: dict[str, Any] | None
    """The manifest of the dataset that is kept and added to."""


@dataclass(slots=True)
class _Build:
    question: Question
    plan: Plan
    folder: Draft
    workers: Workers
    progress: Progress
    first: int = 0
    """The number of the first new file."""
    rows: Counter[str] = field(default_factory=Counter)
    digests: Counter[str] = field(default_factory=Counter)
    drops: Counter[str] = field(default_factory=Counter)
    savings: Counter[str] = field(default_factory=Counter)
    mismatches: int = 0
    task_files: set[str] = field(default_factory=set)
    rewards: set[str] = field(default_factory=set)
    versions: dict[str, set[int]] = field(default_factory=dict)

    @property
    def numbers(self) -> range:
        """Of the files of each table, one a batch."""
        return range(self.first, self.first + len(self.plan.batches))

    def keep(self, out: Path, known: dict[str, Any]) -> None:
        """Take over what the dataset in `out` has."""
        self.first = self.folder.take(out)
        self.rows.update(known["counts"])
        self.digests.update({name: int(text, 16) for name, text in known["digests"].items()})
        self.drops.update(known["drops"])
        self.savings.update(known["savings"])
        self.mismatches = known["capture_mismatch"]
        self.task_files.update(known["task_files"])
        self.rewards.update(known["rewards"])
        self.versions = {name: set(found) for name, found in known["policy_versions"].items()}

    def trace(self) -> None:
        for done, told in enumerate(self.workers.map(phases.trace, self._read()), 1):
            self._add(told.parts)
            self.mismatches += told.mismatches
            self.task_files |= told.task_files
            self.rewards |= told.rewards
            for policy, numbers in told.versions.items():
                self.versions.setdefault(policy, set()).update(numbers)
            self.progress("trace", done, len(self.plan.batches))

    def _read(self) -> Iterator[phases.Batch]:
        store, recipe = self.question.store, self.question.recipe
        for number, batch in zip(self.numbers, self.plan.batches, strict=True):
            spans, unresolved = read_spans(store, recipe.source, self.plan.selection, batch)
            path = self.folder.hand_over("work/spans", number, spans)
            yield phases.Batch(self.folder, recipe, number, path, unresolved, self.plan.newest)

    def credit(self) -> None:
        """Leave each batch its transitions; what is dropped here gets files after theirs."""
        if not self.plan.batches:
            return
        for number, executions in enumerate(
            phases.rounds(self.folder, self.question.recipe), self.numbers.stop
        ):
            drops = phases.credit(self.folder, self.question.recipe, number, executions)
            self._add([self.folder.write("drops", number, drops)])
            self.drops.update(drops["reason"])

    def join(self) -> None:
        recipe = self.question.recipe
        every = (phases.Credited(self.folder, recipe, number) for number in self.numbers)
        for done, told in enumerate(self.workers.map(phases.join, every), 1):
            self._add(told.parts)
            self.drops += told.drops
            self.savings += told.savings
            self.progress("rows", done, len(self.plan.batches))

    def _add(self, parts: Sequence[Part]) -> None:
        for part in parts:
            self.rows[part.table] += part.rows
            self.digests[part.table] = (self.digests[part.table] + part.digest) % (1 << BITS)

    def manifest(self) -> Manifest:
        return Manifest(
            id=dataset_id(self.digests),
            **self.question.manifest(),
            watermark=self.plan.watermark,
            waves=self.plan.waves,
            task_files=sorted(self.task_files),
            rewards=sorted(self.rewards),
            policy_versions={name: sorted(found) for name, found in sorted(self.versions.items())},
            digests={name: f"{digest:032x}" for name, digest in sorted(self.digests.items())},
            counts={table.name: self.rows[table.name] for table in TABLES},
            drops=dict(sorted(self.drops.items())),
            alarms=self._alarms(),
            savings=dict(sorted(self.savings.items())),
            capture_mismatch=self.mismatches,
        )

    def _alarms(self) -> dict[str, list[str]]:
        if not all(self.folder.table(name).exists() for name in selective_drops.TABLES):
            return {}  # no batch, no wave
        return selective_drops.alarms_by_wave(lambda name: pl.scan_parquet(self.folder.table(name)))


def _plan(question: Question, out: Path, update: bool, spans: int) -> Plan:
    store, recipe, selection = question.store, question.recipe, question.selection
    with explain_query_errors(store, recipe.source, selection):
        mark, newest = watermark(store, recipe.source, selection)
        seen = read_waves(store, recipe.source, selection)
        known = _known(question, out, seen) if update else None
        if known is not None:
            closed = {place: wave for place, wave in seen.items() if wave["closed"]}
            rest = tuple({*known["waves"], *(seen.keys() - closed.keys())})
            selection, seen = replace(selection, without=rest), closed
        batches = plan_batches(store, recipe.source, selection, spans)
    if not batches and known is None:
        raise empty_selection(store, recipe.source, selection)
    return Plan(mark, seen, batches, selection, newest, known)


def _known(question: Question, out: Path, seen: WaveStates) -> dict[str, Any] | None:
    """Give the manifest of the dataset in `out` if all of it may stay."""
    if not (out / MANIFEST).exists() or phases.reach(question.recipe) == "time":
        return None
    dataset = Dataset.open(out)
    before = dataset.manifest
    asked = {"schema": SCHEMA_VERSION, **question.manifest()}
    if any(before.get(name) != json.loads(json.dumps(asked[name])) for name in asked):
        return None
    there: WaveStates = before["waves"]
    stays = bool(there) and are_unchanged(there, seen) and all(w["closed"] for w in there.values())
    if (
        not stays
        or not dataset.whole
        or has_late_spans(question.store, question.recipe.source, there, before["watermark"])
    ):
        return None
    return before
