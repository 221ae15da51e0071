"""Build a dataset from the spans of a store, in bounded memory and with any number of workers."""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import polars as pl

from ltrain_collector.store import Store
from ltrain_instrument.identity import SourceMode
from ltrain_transforms.datasets import phases, selective_drops
from ltrain_transforms.datasets.dataset import Dataset
from ltrain_transforms.datasets.digest import BITS, dataset_id
from ltrain_transforms.datasets.draft import Draft, Part, open_draft
from ltrain_transforms.datasets.location import check_replaceable
from ltrain_transforms.datasets.manifest import MANIFEST, SCHEMA_VERSION, Manifest
from ltrain_transforms.datasets.workers import LocalWorker, Workers
from ltrain_transforms.policy_lineage import Lineage
from ltrain_transforms.recipe import Recipe
from ltrain_transforms.rendering import ServedPolicy
from ltrain_transforms.source import (
    SPANS_PER_BATCH,
    CreditScope,
    ExecutionBatch,
    Selection,
    WaveStates,
    are_unchanged,
    empty_selection,
    explain_query_errors,
    has_late_spans,
    plan_batches,
    read_spans,
    read_waves,
    spans_query,
    watermark,
)
from ltrain_transforms.tables import OTHER_SPAN, TABLES

Progress = Callable[[str, int, int], None]
"""Called with the phase, the number of batches done and the number of all batches."""


def ignore_progress(phase: str, done: int, total: int) -> None:
    """Report nothing."""


def build(
    store: Store,
    recipe: Recipe,
    out: Path,
    *,
    run: str | None = None,
    mode: SourceMode | None = None,
    wave: int | None = None,
    groups: Sequence[str] | None = None,
    base: Mapping[str, str] | None = None,
    lineage: Lineage | None = None,
    ended_before: int | None = None,
    since: str | None = None,
    served: Sequence[ServedPolicy] = (),
    update: bool = False,
    replace: bool = False,
    workers: Workers | None = None,
    spans_a_batch: int = SPANS_PER_BATCH,
    progress: Progress = ignore_progress,
) -> Dataset:
    """Build a dataset from the spans of `store` and write it to `out`.

    A dataset that is there with the same rows is replaced.

    Args:
        run: replaces the recipe's `source.run`.
        mode: replaces the recipe's `source.mode`.
        wave: of which wave the executions are.
        groups: of which tasks in which waves, each as `<wave>/<task>`.
        base: digests of the trained policy's base (`read_base_digests`), for the manifest.
        lineage: of the policy version that will be trained on the dataset; executions that are
            outdated for it get no credit.
        ended_before: Unix time in ns until which all executions of a group must have ended to get
            credit; None: whenever.
        since: replaces the recipe's `source.since`.
        served: the policies whose calls without token ids are rendered (`find_served`).
        update: keep the waves of the dataset in `out` and add the waves closed since. The whole
            dataset is built again when its recipe, query or stored waves have changed.
        replace: whether any other dataset in `out` is replaced, too.
        workers: where the batches are processed; None is this process.
        spans_a_batch: approximate number of spans in memory at once; it changes no row.

    Raises:
        NothingToBuild: when the recipe's source selects no execution.
        NoDataset: when `out` exists and is not a dataset, or is inside one.
        DatasetExists: when `out` holds another dataset, and `update` or `replace` do not allow it.
        Unwritable: when `out` cannot be written, or the disk is full.
    """
    recipe = recipe if mode is None else recipe.with_mode(mode)
    chosen = None if groups is None else tuple(groups)
    selection = Selection.of_source(recipe.source, run=run, wave=wave, groups=chosen, since=since)
    named_modes = () if selection.mode is None else (selection.mode,)
    scope = CreditScope(named_modes, lineage, ended_before, tuple(served))
    request = BuildRequest(store, recipe, selection, dict(base or {}), scope)
    build_plan = _plan(request, out, update, spans_a_batch)
    with open_draft(out) as folder:
        work = _Build(request, build_plan, folder, workers or LocalWorker(), progress)
        if build_plan.previous is not None:
            work.reuse(out, build_plan.previous)
        work.trace()
        work.credit()
        work.build_rows()
        manifest = work.manifest()
        if not replace:
            check_replaceable(out, manifest, update=update)
        (folder.folder / MANIFEST).write_text(manifest.to_json())
    return Dataset(manifest.id, out, manifest.counts)


@dataclass(frozen=True, slots=True)
class BuildRequest:
    """The input of a build: the store, the selection of its spans, and the recipe."""

    store: Store
    recipe: Recipe
    selection: Selection
    base: dict[str, str]
    scope: CreditScope

    def manifest(self) -> dict[str, Any]:
        """Return the fields of `Manifest` that describe the request."""
        sql, parameters = spans_query(self.recipe.source, self.selection)
        if self.scope.ended_before is not None:
            parameters["ended_before"] = self.scope.ended_before
        lineage = self.scope.lineage
        return {
            "store": self.store.name,
            "query": sql,
            "parameters": parameters,
            "recipe": self.recipe.model_dump(mode="json", by_alias=True),
            "recipe_digest": self.recipe.digest,
            "base": self.base,
            "trained": {} if lineage is None else {lineage.policy: lineage.version},
            "served": {policy.name: policy.describe() for policy in self.scope.served},
        }


@dataclass(frozen=True, slots=True)
class BuildPlan:
    """The batches to build, and their waves."""

    watermark: str
    waves: WaveStates
    batches: list[ExecutionBatch]
    selection: Selection
    """The part of the request that the existing dataset does not hold."""
    newest: int | None
    """The end of the newest of all selected spans, in nanoseconds."""
    previous: dict[str, Any] | None
    """The manifest of the dataset that gets the new waves."""


@dataclass(slots=True)
class _Build:
    request: BuildRequest
    plan: BuildPlan
    folder: Draft
    workers: Workers
    progress: Progress
    first: int = 0
    """The number of the first new file of each table."""
    rows: Counter[str] = field(default_factory=Counter)
    digests: Counter[str] = field(default_factory=Counter)
    drops: Counter[str] = field(default_factory=Counter)
    savings: Counter[str] = field(default_factory=Counter)
    token_sources: Counter[str] = field(default_factory=Counter)
    mismatches: int = 0
    task_files: set[str] = field(default_factory=set)
    rewards: set[str] = field(default_factory=set)
    versions: dict[str, set[int]] = field(default_factory=dict)

    @property
    def numbers(self) -> range:
        """The numbers of the new files of each table: one file per batch."""
        return range(self.first, self.first + len(self.plan.batches))

    def reuse(self, out: Path, manifest: dict[str, Any]) -> None:
        """Link the files of the dataset in `out` and start from the counts of its manifest."""
        self.first = self.folder.link_files(out)
        self.rows.update(manifest["counts"])
        self.digests.update({name: int(text, 16) for name, text in manifest["digests"].items()})
        self.drops.update(manifest["drops"])
        self.drops[OTHER_SPAN] += manifest.get("other_spans", 0)  # older manifests have it in drops
        self.savings.update(manifest["savings"])
        self.token_sources.update(manifest["token_sources"])
        self.mismatches = manifest["capture_mismatch"]
        self.task_files.update(manifest["task_files"])
        self.rewards.update(manifest["rewards"])
        policies = manifest["policy_versions"].items()
        self.versions = {name: set(numbers) for name, numbers in policies}

    def trace(self) -> None:
        summaries = self.workers.map(phases.trace_batch, self._read())
        for done, summary in enumerate(summaries, 1):
            self._add(summary.parts)
            self.mismatches += summary.mismatches
            self.task_files |= summary.task_files
            self.rewards |= summary.rewards
            for policy, numbers in summary.versions.items():
                self.versions.setdefault(policy, set()).update(numbers)
            self.progress("trace", done, len(self.plan.batches))

    def _read(self) -> Iterator[phases.TraceJob]:
        recipe, newest, scope = self.request.recipe, self.plan.newest, self.request.scope
        for number, batch in zip(self.numbers, self.plan.batches, strict=True):
            spans = self._spans(number, batch)
            yield phases.TraceJob(self.folder, recipe, number, spans, newest, scope)

    def _spans(self, number: int, batch: ExecutionBatch) -> phases.SpansFile | phases.StoredBatch:
        """Return where a worker finds the spans of a batch; from a server it reads them itself."""
        request, selection = self.request, self.plan.selection
        store, source = request.store, request.recipe.source
        if store.server is not None and not isinstance(self.workers, LocalWorker):
            return phases.StoredBatch(store.server, request.recipe, selection, batch)
        spans, unresolved = read_spans(store, source, selection, batch, request.recipe.metrics)
        return phases.SpansFile(self.folder.write_shared("work/spans", number, spans), unresolved)

    def credit(self) -> None:
        """Write the transitions by batch, and the drops to files with later numbers."""
        if not self.plan.batches:
            return
        recipe, scope = self.request.recipe, self.request.scope
        rounds = phases.credit_rounds(self.folder, recipe)
        for number, executions in enumerate(rounds, self.numbers.stop):
            drops = phases.credit_round(self.folder, recipe, number, executions, scope)
            self._add([self.folder.write_table("drops", number, drops)])
            self.drops.update(drops["reason"])

    def build_rows(self) -> None:
        recipe, served = self.request.recipe, self.request.scope.served
        jobs = (phases.RowsJob(self.folder, recipe, number, served) for number in self.numbers)
        for done, summary in enumerate(self.workers.map(phases.build_rows, jobs), 1):
            self._add(summary.parts)
            self.drops += summary.drops
            self.savings += summary.savings
            self.token_sources += summary.token_sources
            self.progress("rows", done, len(self.plan.batches))

    def _add(self, parts: Sequence[Part]) -> None:
        for part in parts:
            self.rows[part.table] += part.rows
            self.digests[part.table] = (self.digests[part.table] + part.digest) % (1 << BITS)

    def manifest(self) -> Manifest:
        drops = {reason: n for reason, n in sorted(self.drops.items()) if reason != OTHER_SPAN}
        return Manifest(
            id=dataset_id(self.digests),
            **self.request.manifest(),
            watermark=self.plan.watermark,
            waves=self.plan.waves,
            task_files=sorted(self.task_files),
            rewards=sorted(self.rewards),
            policy_versions={name: sorted(ids) for name, ids in sorted(self.versions.items())},
            digests={name: f"{digest:032x}" for name, digest in sorted(self.digests.items())},
            counts={table.name: self.rows[table.name] for table in TABLES},
            drops=drops,
            other_spans=self.drops[OTHER_SPAN],
            alarms=self._alarms(),
            savings=dict(sorted(self.savings.items())),
            token_sources=dict(sorted(self.token_sources.items())),
            rendered=self._rendered(drops),
            capture_mismatch=self.mismatches,
            files=self.folder.describe(),
        )

    def _rendered(self, drops: Mapping[str, int]) -> dict[str, Any]:
        served = self.request.scope.served
        return Manifest.state_bias(self.token_sources, drops) if served else {}

    def _alarms(self) -> dict[str, list[str]]:
        if not all(self.folder.table_folder(name).exists() for name in selective_drops.TABLES):
            return {}  # nothing was built
        return selective_drops.alarms_by_wave(
            lambda name: pl.scan_parquet(self.folder.table_folder(name))
        )


def _plan(request: BuildRequest, out: Path, update: bool, spans: int) -> BuildPlan:
    store, recipe, selection = request.store, request.recipe, request.selection
    with explain_query_errors(store, recipe.source, selection):
        mark, newest = watermark(store, recipe.source, selection)
        stored = read_waves(store, recipe.source, selection)
        previous = _reusable(request, out, stored) if update else None
        if previous is not None:
            closed = {name: wave for name, wave in stored.items() if wave["closed"]}
            skipped = tuple({*previous["waves"], *(stored.keys() - closed.keys())})
            selection, stored = replace(selection, without=skipped), closed
        batches = plan_batches(store, recipe.source, selection, spans)
    if not batches and previous is None:
        raise empty_selection(store, recipe.source, selection)
    return BuildPlan(mark, stored, batches, selection, newest, previous)


def _reusable(request: BuildRequest, out: Path, stored: WaveStates) -> dict[str, Any] | None:
    """Return the manifest of the dataset in `out` if new waves may be added to it, else None."""
    if not (out / MANIFEST).exists() or phases.credit_reach(request.recipe) == "time":
        return None
    dataset = Dataset.open(out)
    before = dataset.manifest
    required = {"schema": SCHEMA_VERSION, **request.manifest()}
    required.pop("recipe")  # its digest leaves out budgets, which change no row
    if any(before.get(name) != json.loads(json.dumps(required[name])) for name in required):
        return None
    built: WaveStates = before["waves"]
    all_closed = bool(built) and all(wave["closed"] for wave in built.values())
    if (
        not all_closed
        or not are_unchanged(built, stored)
        or not dataset.is_intact
        or has_late_spans(request.store, request.recipe.source, built, before["watermark"])
    ):
        return None
    return before
