"""The tables of a rollout as a dataset has them: what was trained, by the recipe of that time."""

from dataclasses import dataclass
from pathlib import Path

import polars as pl

from ltrain_collector.store import Store
from ltrain_instrument.errors import LtrainError
from ltrain_transforms.datasets import MANIFEST, SCHEMA_VERSION, Dataset, list_manifests
from ltrain_transforms.errors import BadPolicyFile
from ltrain_transforms.policy_file import versions_trained_on
from ltrain_transforms.recipe import Recipe, Source
from ltrain_transforms.rewards import outcomes
from ltrain_transforms.show.rollout import (
    Extent,
    RolloutPlace,
    RolloutTables,
    explain_evidence,
    own_tables,
)
from ltrain_transforms.source import Selection, read_spans
from ltrain_transforms.tables import TABLES


@dataclass(frozen=True, slots=True)
class TrainedDataset:
    """A dataset with a rollout in it."""

    path: Path
    id: str
    recipe_digest: str
    watermark: str
    """When the latest of its spans was ingested."""
    versions: tuple[str, ...]
    """The policy versions that were trained on it."""

    @property
    def label(self) -> str:
        """The dataset and its versions, for the reader."""
        trained = ", ".join(self.versions) or "no version yet"
        return f"dataset {self.id} (trained: {trained}), recipe {self.recipe_digest}"


def find_trained(home: Path, place: RolloutPlace) -> TrainedDataset | None:
    """Return the newest dataset with a rollout, first of the datasets that trained a version."""
    wave = f"{place.run}/{place.mode}/{place.wave}"
    found = list[tuple[bool, float, TrainedDataset]]()
    for path, manifest in list_manifests(home):
        known = manifest.get("schema") == SCHEMA_VERSION and wave in manifest.get("waves", {})
        if not known or not _has_rollout(path, place.rollout):
            continue
        versions = _versions(home, str(manifest["id"]))
        dataset = TrainedDataset(
            path, manifest["id"], manifest["recipe_digest"], manifest["watermark"], versions
        )
        found.append((bool(versions), (path / MANIFEST).stat().st_mtime, dataset))
    return max(found, key=lambda one: one[:2])[2] if found else None


def _versions(home: Path, dataset: str) -> tuple[str, ...]:
    try:
        return tuple(versions_trained_on(home / "policies", dataset))
    except BadPolicyFile:  # the page of the dataset names the damaged file
        return ()


def _has_rollout(path: Path, rollout: str) -> bool:
    executions = pl.scan_parquet(path / "executions").filter(pl.col("rollout_id") == rollout)
    try:
        return bool(executions.select(pl.len()).collect().item())
    except (pl.exceptions.PolarsError, OSError):  # a damaged dataset: the recipe is applied instead
        return False


def read_trained(
    store: Store, dataset: TrainedDataset, place: RolloutPlace
) -> RolloutTables | None:
    """Return the tables of a rollout in a dataset; None if the dataset is damaged.

    Explanations and the ids of spans that are in no call are read from the store.
    """
    rollout = place.rollout
    spans, _ = read_spans(store, Source(), Selection(rollouts=(rollout,), run=place.run or None))
    try:
        executions = pl.scan_parquet(dataset.path / "executions")
        own = executions.filter(pl.col("rollout_id") == rollout).collect()
        peers = _group(executions, own["group_id"].drop_nulls())
        recipe = Recipe.model_validate(Dataset.open(dataset.path).manifest["recipe"])
        scores = outcomes(recipe, _rows(dataset.path, "rewards", peers["execution_id"]), peers)
        ids = own["execution_id"]
        found = {table.name: _rows(dataset.path, table.name, ids) for table in TABLES}
    except (pl.exceptions.PolarsError, OSError, ValueError, LtrainError):
        return None
    tables = own_tables(found, ids, spans["span_id"])
    return RolloutTables(
        rollout,
        tables,
        scores,
        dataset.label,
        explanations=explain_evidence(spans, tables),
        extent=Extent.TRAINED,
    )


def _group(executions: pl.LazyFrame, groups: pl.Series) -> pl.DataFrame:
    return executions.filter(pl.col("group_id").is_in(groups.implode())).collect()


def _rows(path: Path, table: str, executions: pl.Series) -> pl.DataFrame:
    """Return the rows of executions in a table; all drops, which name no execution."""
    rows = pl.scan_parquet(path / table)
    if table == "drops":
        return rows.collect()
    return rows.filter(pl.col("execution_id").is_in(executions.implode())).collect()
