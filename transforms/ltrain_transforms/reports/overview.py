"""What a store and a home contain: tables of runs, of policies and of datasets."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import polars as pl

from ltrain_collector.store import Store
from ltrain_transforms.datasets import list_manifests
from ltrain_transforms.errors import BadPolicyFile
from ltrain_transforms.policy_file import POLICY_MANIFEST, PolicyVersion, read_version
from ltrain_transforms.reports.alarms import count_alarms
from ltrain_transforms.reports.policy import current_version, list_versions, policy_names
from ltrain_transforms.reports.references import Kind, Reference
from ltrain_transforms.reports.report import Cell, Grid, format_cell, join_names
from ltrain_transforms.reports.waves import counting_rollouts, query_means, query_outcomes
from ltrain_transforms.traces import sender_roles

MAX_RUNS = 100
"""Number of runs that are listed: those with the newest spans."""
RUNS = f"""
SELECT toString(RunId) AS run, toInt64(uniqExactIf(RolloutId, RolloutId != '')) AS rollouts,
    toInt64(uniqExactIf((Mode, Wave), RolloutId != '')) AS waves,
    min(Timestamp) AS began, max(Timestamp) AS ended
FROM otel.spans WHERE RunId != '' GROUP BY run ORDER BY ended DESC, run LIMIT {MAX_RUNS}
"""
RUN_COLUMNS = (
    *("run", "waves", "rollouts", "reward in training", "validation", "waves with alarms"),
    *("first span (UTC)", "last span (UTC)"),
)
POLICY_COLUMNS = ("policy", "served", "versions", "trained on", "created (UTC)")
DATASET_COLUMNS = ("dataset", "waves", "executions", "rows", "drops", "folder")


def run_table(store: Store, trust: Sequence[str] = sender_roles.TRUSTED) -> Grid:
    """Return the runs with the newest spans, and their first and last mean rewards."""
    runs = store.query(RUNS).to_dicts()
    names = [row["run"] for row in runs]
    outcomes = query_outcomes(store, names, trust)
    means = query_means(store, names, counting_rollouts(outcomes), trust)
    alarms = count_alarms(store, names, trust)
    rows = tuple(
        (
            Reference(Kind.RUN, row["run"]),
            row["waves"],
            row["rollouts"],
            *(_first_and_last(means, row["run"], mode) for mode in ("train", "val")),
            alarms.get(row["run"]),
            *(_minute(row[time]) for time in ("began", "ended")),
        )
        for row in runs
    )
    empty = "none: start the store with `ltrain up`, and a run with `ltrain run`"
    return Grid("Runs", RUN_COLUMNS, rows, empty)


def _first_and_last(means: pl.DataFrame, run: str, mode: str) -> str | None:
    """Return the mean reward of the first and the last wave, as text."""
    own = means.filter(run=run, mode=mode)
    names = own["name"].unique().sort().to_list()
    if not names:
        return None
    name = "reward" if "reward" in names else names[0]
    values = own.filter(name=name).sort("wave")["mean"].to_list()
    label = "" if name == "reward" else f"{name} "
    first, last = format_cell(values[0]), format_cell(values[-1])
    return f"{label}{first} to {last}" if len(values) > 1 else f"{label}{first}"


def policy_table(home: Path) -> Grid:
    """Return the policies of a home."""
    rows = tuple(_policy_row(home / "policies" / name) for name in policy_names(home))
    return Grid("Policies", POLICY_COLUMNS, rows, f"none in {home}/policies")


def _policy_row(folder: Path) -> tuple[Cell, ...]:
    versions, current = list_versions(folder), current_version(folder)
    served = Reference(Kind.POLICY, f"{folder.name}@{current}", str(current))
    version = _read_version(folder / f"v{current}" / POLICY_MANIFEST)
    dataset = Reference(Kind.DATASET, version.dataset) if version and version.dataset else None
    return (
        Reference(Kind.POLICY, folder.name),
        served if current is not None else None,
        len(versions),
        dataset,
        f"{version.created_at:%Y-%m-%d %H:%M}" if version else None,
    )


def _read_version(file: Path) -> PolicyVersion | None:
    with suppress(BadPolicyFile):  # its own report has the error
        return read_version(file)
    return None


def dataset_table(home: Path) -> Grid:
    """Return the datasets of a home."""
    rows = tuple(_dataset_rows(home))
    return Grid("Datasets", DATASET_COLUMNS, rows, f"none in {home}/datasets")


def _dataset_rows(home: Path) -> Iterator[tuple[Cell, ...]]:
    for path, manifest in list_manifests(home):
        counts = manifest.get("counts", {})
        yield (
            Reference(Kind.DATASET, str(manifest["id"])),
            join_names(list(manifest.get("waves", {}))),
            *(counts.get(table) for table in ("executions", "samples", "drops")),
            str(path.relative_to(home)),
        )


def _minute(time: datetime) -> str:
    return f"{time:%Y-%m-%d %H:%M}"
