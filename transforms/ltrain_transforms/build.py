"""The store's spans -> a dataset, in bounded memory, the same whatever the number of workers."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ltrain_collector.errors import QueryFailed
from ltrain_collector.store import Store
from ltrain_transforms import phases
from ltrain_transforms.batches import SPANS, plan
from ltrain_transforms.dataset import Dataset
from ltrain_transforms.digest import BITS, dataset_id
from ltrain_transforms.errors import NothingToBuild
from ltrain_transforms.manifest import MANIFEST, Manifest
from ltrain_transforms.parts import Draft, Part, draft
from ltrain_transforms.recipe import Recipe
from ltrain_transforms.source import Batch, Selection, query, read, watermark
from ltrain_transforms.tables import TABLES
from ltrain_transforms.workers import Here, Workers

UNKNOWN_TABLE, UNKNOWN_DATABASE = 60, 81
"""ClickHouse's numbers: a store that holds nothing of ours."""

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
    workers: Workers | None = None,
    spans_a_batch: int = SPANS,
    progress: Progress = silent,
) -> Dataset:
    """Make a dataset of what `store` holds and write it to `out`, in place of one that is there.

    Args:
        run: instead of the recipe's `source.run`.
        mode: train, val or prod; None is all.
        base: digests of base model, tokenizer and chat template, for the manifest.
        workers: who does the work; None is this process.
        spans_a_batch: about how many spans are in memory together; changes no row.

    Raises:
        NothingToBuild: when the recipe's source selects no execution.
        NoDataset: when `out` is there and is no dataset.
    """
    selection = Selection(run=run, mode=mode, wave=wave)
    mark, batches = _plan(store, recipe, selection, spans_a_batch)
    with draft(out) as folder:
        work = _Build(store, recipe, selection, folder, batches, workers or Here(), progress)
        work.trace()
        work.credit()
        work.join()
        manifest = work.manifest(mark, dict(base or {}))
        (folder.folder / MANIFEST).write_text(manifest.text())
    return Dataset(manifest.id, out, manifest.counts)


@dataclass(slots=True)
class _Build:
    store: Store
    recipe: Recipe
    selection: Selection
    folder: Draft
    batches: Sequence[Batch]
    workers: Workers
    progress: Progress
    rows: Counter[str] = field(default_factory=Counter)
    digests: Counter[str] = field(default_factory=Counter)
    drops: Counter[str] = field(default_factory=Counter)
    task_files: set[str] = field(default_factory=set)
    rewards: set[str] = field(default_factory=set)
    versions: dict[str, set[int]] = field(default_factory=dict)

    def trace(self) -> None:
        for done, told in enumerate(self.workers.map(phases.trace, self._read()), 1):
            self._add(told.parts)
            self.task_files |= told.task_files
            self.rewards |= told.rewards
            for policy, numbers in told.versions.items():
                self.versions.setdefault(policy, set()).update(numbers)
            self.progress("trace", done, len(self.batches))

    def _read(self) -> Iterator[phases.Batch]:
        for number, batch in enumerate(self.batches):
            found = read(self.store, self.recipe.source, self.selection, batch)
            yield phases.Batch(self.folder, self.recipe, number, *found)

    def credit(self) -> None:
        for number, executions in enumerate(phases.rounds(self.folder)):
            drops = phases.credit(self.folder, self.recipe, number, executions)
            self._add([self.folder.write("drops", len(self.batches) + number, drops)])
            self.drops.update(drops["reason"])

    def join(self) -> None:
        every = (
            phases.Credited(self.folder, self.recipe, number) for number in range(len(self.batches))
        )
        for done, told in enumerate(self.workers.map(phases.join, every), 1):
            self._add(told.parts)
            self.drops += told.drops
            self.progress("rows", done, len(self.batches))

    def _add(self, parts: Sequence[Part]) -> None:
        for part in parts:
            self.rows[part.table] += part.rows
            self.digests[part.table] = (self.digests[part.table] + part.digest) % (1 << BITS)

    def manifest(self, mark: str, base: dict[str, str]) -> Manifest:
        sql, parameters = query(self.recipe.source, self.selection)
        return Manifest(
            id=dataset_id(self.digests),
            store=self.store.name,
            query=sql,
            parameters=parameters,
            watermark=mark,
            recipe=self.recipe.model_dump(mode="json", by_alias=True),
            recipe_digest=self.recipe.digest,
            task_files=sorted(self.task_files),
            rewards=sorted(self.rewards),
            base=base,
            policy_versions={name: sorted(found) for name, found in sorted(self.versions.items())},
            counts={table.name: self.rows[table.name] for table in TABLES},
            drops=dict(sorted(self.drops.items())),
        )


def _plan(
    store: Store, recipe: Recipe, selection: Selection, spans: int
) -> tuple[str, list[Batch]]:
    """Give the watermark and the batches."""
    try:
        mark = watermark(store, recipe.source, selection)
        batches = plan(store, recipe.source, selection, spans)
    except QueryFailed as error:
        if error.code in (UNKNOWN_TABLE, UNKNOWN_DATABASE):
            raise NothingToBuild(_nothing(store, recipe, selection, [])) from error
        raise
    if not batches:
        runs = store.query("SELECT DISTINCT toString(RunId) AS run FROM otel.spans ORDER BY run")
        raise NothingToBuild(_nothing(store, recipe, selection, runs["run"].to_list()))
    return mark, batches


def _nothing(store: Store, recipe: Recipe, selection: Selection, runs: list[str]) -> str:
    run = selection.run or recipe.source.run
    wanted = {
        "run": run,
        "mode": selection.mode,
        "wave": selection.wave,
        "where": recipe.source.where,
        "since": recipe.source.since,
        "until": recipe.source.until,
    }
    asked = ", ".join(f"{name} {value}" for name, value in wanted.items() if value is not None)
    there = ", ".join(name for name in runs if name) or "none"
    return (
        f"The store {store.name} holds no execution of what [source] selects ({asked}). "
        f"Runs in it: {there}. `ltrain rollout` makes some; --store names another store."
    )
