"""A dataset: a directory of parquet files, one a table, with `manifest.json`.

It appears whole or not at all: it is written beside its place and moved there.
"""

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import mkdtemp
from typing import Self

import polars as pl

from ltrain_collector.errors import QueryFailed
from ltrain_collector.store import Store
from ltrain_instrument import attributes
from ltrain_instrument.errors import UnknownName
from ltrain_transforms.errors import NoDataset, NothingToBuild
from ltrain_transforms.manifest import Manifest, digest, ordered, reasons, versions
from ltrain_transforms.pipeline import derive
from ltrain_transforms.recipe import Recipe
from ltrain_transforms.selection import gathered
from ltrain_transforms.source import Selection, query, read, watermark
from ltrain_transforms.spans import each
from ltrain_transforms.tables import DROPS, TABLES

MANIFEST = "manifest.json"
UNKNOWN_TABLE, UNKNOWN_DATABASE = 60, 81
"""ClickHouse's numbers: a store that holds nothing of ours."""


@dataclass(frozen=True, slots=True)
class Dataset:
    id: str
    path: Path
    counts: dict[str, int]
    """Rows of each table."""
    _tables: dict[str, pl.DataFrame] = field(default_factory=dict, repr=False)

    def table(self, name: str) -> pl.DataFrame:
        """Give one of its tables.

        Raises:
            UnknownName: when there is none of that name.
        """
        if name not in self.counts:
            raise UnknownName("table", name, self.counts)
        if name not in self._tables:
            self._tables[name] = pl.read_parquet(self.path / f"{name}.parquet")
        return self._tables[name]

    @property
    def drops(self) -> pl.DataFrame:
        """What was left out, with the reason."""
        return self.table("drops")

    @property
    def manifest(self) -> dict[str, object]:
        """What it was made from."""
        return dict(json.loads((self.path / MANIFEST).read_text()))

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open a dataset that was built.

        Raises:
            NoDataset: when there is none.
        """
        try:
            manifest = json.loads((path / MANIFEST).read_text())
        except (OSError, ValueError) as error:
            raise NoDataset(
                f"{path} is no dataset: it has no readable {MANIFEST}. `ltrain build` makes one."
            ) from error
        return cls(manifest["id"], path, manifest["counts"])


def build(
    store: Store,
    recipe: Recipe,
    out: Path,
    *,
    run: str | None = None,
    mode: str | None = "train",
    wave: int | None = None,
    base: Mapping[str, str] | None = None,
) -> Dataset:
    """Make a dataset of what `store` holds and write it to `out`, in place of one that is there.

    Args:
        run: instead of the recipe's `source.run`.
        mode: train, val or prod; None is all.
        base: digests of base model, tokenizer and chat template, for the manifest.

    Raises:
        NothingToBuild: when the recipe's source selects no execution.
        NoDataset: when `out` is there and is no dataset.
    """
    selection = Selection(run=run, mode=mode, wave=wave)
    tables, spans, mark = _derived(store, recipe, selection)
    sql, parameters = query(recipe.source, selection)
    manifest = Manifest(
        id=digest(tables),
        store=store.name,
        query=sql,
        parameters=parameters,
        watermark=mark,
        recipe=recipe.model_dump(mode="json", by_alias=True),
        recipe_digest=recipe.digest,
        task_files=_said(spans, attributes.TASKS_DIGEST),
        rewards=_said(spans, attributes.REWARD_DIGEST),
        base=dict(base or {}),
        policy_versions=versions(tables["calls"]),
        counts={name: frame.height for name, frame in tables.items()},
        drops=reasons(tables["drops"]),
    )
    _write(out, tables, manifest)
    return Dataset(manifest.id, out, manifest.counts, tables)


def _derived(
    store: Store, recipe: Recipe, selection: Selection
) -> tuple[dict[str, pl.DataFrame], pl.DataFrame, str]:
    try:
        mark = watermark(store, recipe.source, selection)
        spans, unresolved = read(store, recipe.source, selection)
    except QueryFailed as error:
        if error.code in (UNKNOWN_TABLE, UNKNOWN_DATABASE):
            raise NothingToBuild(_nothing(store, recipe, selection, [])) from error
        raise
    if spans.is_empty():
        runs = store.query("SELECT DISTINCT toString(RunId) AS run FROM otel.spans ORDER BY run")
        raise NothingToBuild(_nothing(store, recipe, selection, runs["run"].to_list()))
    tables = derive(spans, recipe).tables
    tables["drops"] = gathered(DROPS, unresolved, tables["drops"])
    in_order = {table.name: ordered(table.name, tables[table.name]) for table in TABLES}
    return in_order, spans, mark


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


def _said(spans: pl.DataFrame, name: str) -> list[str]:
    closing = spans.filter(pl.col("name") == attributes.SPAN_ROLLOUT)
    return sorted({said for span in each(closing) if (said := span.get(name))})


def _write(out: Path, tables: Mapping[str, pl.DataFrame], manifest: Manifest) -> None:
    if out.exists() and not (out / MANIFEST).exists() and any(out.iterdir()):
        raise NoDataset(f"{out} is there and is no dataset; name another folder with --out.")
    out.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        for name, frame in tables.items():
            frame.write_parquet(beside / f"{name}.parquet", compression="zstd")
        (beside / MANIFEST).write_text(manifest.text())
        beside.chmod(0o755)  # mkdtemp makes it the owner's alone
        if out.exists():
            shutil.rmtree(out)
        beside.rename(out)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
