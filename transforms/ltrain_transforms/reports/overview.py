"""The content of a store and a home: tables of runs, of policies and of datasets."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import polars as pl

from ltrain_collector.store import Store
from ltrain_transforms.datasets import list_manifests
from ltrain_transforms.deployment_file import find_candidate
from ltrain_transforms.errors import BadPolicyFile
from ltrain_transforms.policy_file import (
    POLICY_MANIFEST,
    PolicyVersion,
    list_versions,
    read_version,
)
from ltrain_transforms.reports.alarms import count_alarms
from ltrain_transforms.reports.policy import current_version, policy_names
from ltrain_transforms.reports.references import Kind, Reference
from ltrain_transforms.reports.report import (
    Cell,
    Grid,
    Spark,
    Tile,
    Tiles,
    format_cell,
    join_names,
)
from ltrain_transforms.reports.run_state import (
    Change,
    RunStatus,
    dropped_share,
    latest_changes,
    list_runs,
    run_state,
)
from ltrain_transforms.reports.waves import (
    counting_rollouts,
    mean_scores,
    query_outcomes,
    query_sums,
)
from ltrain_transforms.traces import sender_roles

LARGE = 1_000_000
"""Number of spans above which the figures of all runs take more than a quarter of a second."""
PATIENCE = 0.02
"""Seconds to wait for the figures of a large store, which are known unless a run has changed."""
MAX_RUNS = 100
"""Number of runs that are listed: those with the newest spans."""
RUNS = """
SELECT toString(RunId) AS run,
    toInt64(uniqExactIf(cityHash64(RolloutId), RolloutId != '')) AS rollouts,
    toInt64(uniqExactIf(cityHash64(Mode, Wave), RolloutId != '')) AS waves,
    min(Timestamp) AS began, max(Timestamp) AS ended
FROM otel.spans WHERE RunId IN {runs:Array(String)} GROUP BY run
"""
"""Hashes take a third of the time of the texts."""
WaveDataset = tuple[int, Path, str]
"""A wave, and the folder and the id of its dataset."""
RUN_COLUMNS = (
    *("run", "state", "waves", "rollouts", "reward in training", "validation"),
    *("waves with alarms", "dropped"),
    *("first span (UTC)", "last span (UTC)"),
)
POLICY_COLUMNS = ("policy", "served", "on trial", "versions", "trained on", "created (UTC)")
DATASET_COLUMNS = ("dataset", "waves", "executions", "rows", "drops", "folder")


@dataclass(frozen=True, slots=True)
class RunFigures:
    """The records of a run in the store."""

    change: Change
    """The state of these records when they were read."""
    trust: tuple[str, ...]
    cells: tuple[Cell, ...]
    """Waves, rollouts, rewards in training and validation, and waves with alarms."""
    times: tuple[Cell, ...]
    """The first and the last span."""


UNREAD = RunFigures((), (), ("…",) * 5, ("…",) * 2)
"""In the place of figures that are still being read."""


class RunTable:
    """The table of runs. It reads a run again after spans or evaluations of it have arrived.

    A table can come before its figures: those of ten million spans take two seconds.
    """

    def __init__(self) -> None:
        self._known: dict[str, RunFigures] = {}
        self._reader = ThreadPoolExecutor(1)
        """One reading follows another, so a run is read once."""
        self._reading: Future[None] | None = None
        self._shares: dict[tuple[Path, str], float] = {}
        """The shares of dropped rollouts, by folder and id of the dataset."""

    @property
    def is_reading(self) -> bool:
        """Whether figures of the last table are still being read."""
        return self._reading is not None and not self._reading.done()

    def read(self, store: Store, home: Path, trust: Sequence[str] = sender_roles.TRUSTED) -> Grid:
        """Return the runs with the newest spans: their state, rewards and drops.

        The runs of the home that have no span yet come first. In a large store the figures of runs
        that have changed are the earlier ones or `UNREAD`, while `is_reading`.
        """
        changes = latest_changes(store, MAX_RUNS)
        spans = sum(change[0] for change in changes.values())
        reading = self._reader.submit(self._update, store, changes, tuple(trust))
        self._reading = reading
        with suppress(TimeoutError):
            reading.result(PATIENCE if spans > LARGE else None)
        known, newest = self._known, _newest_datasets(home)
        if not reading.done():
            known = {run: known.get(run, UNREAD) for run in changes}
        rows = _home_rows(home, set(changes)) + tuple(
            (
                Reference(Kind.RUN, run),
                run_state(home, run).progress,
                *known[run].cells,
                self._dropped(newest.get(run)),
                *known[run].times,
            )
            for run in changes
            if run in known  # else its spans were removed meanwhile
        )
        empty = "none: start the store with `ltrain up`, and a run with `ltrain run`"
        return Grid("Runs", RUN_COLUMNS, rows, empty)

    def _update(self, store: Store, changes: Mapping[str, Change], trust: tuple[str, ...]) -> None:
        known = {
            run: figures
            for run, figures in self._known.items()
            if (figures.change, figures.trust) == (changes.get(run), trust)
        }
        changed = {run: change for run, change in changes.items() if run not in known}
        self._known = known | _read_figures(store, changed, trust)

    def _dropped(self, newest: WaveDataset | None) -> str | None:
        """Return the share of the rollouts of a wave without a row, as text."""
        if newest is None:
            return None
        wave, path, dataset = newest
        share = self._shares.get((path, dataset))
        if share is None:
            share = dropped_share(path)
            if share is None:  # it has no executions, or cannot be read now
                return None
            self._shares[path, dataset] = share
        return f"{share:.0%} of wave {wave}"


def _read_figures(
    store: Store, changes: Mapping[str, Change], trust: tuple[str, ...]
) -> dict[str, RunFigures]:
    names = list(changes)
    if not names:
        return {}
    outcomes = query_outcomes(store, names, trust)
    means = mean_scores(query_sums(store, names, trust), counting_rollouts(outcomes))
    alarms = count_alarms(store, names, trust)
    return {
        run: RunFigures(
            changes[run],
            trust,
            (
                waves,
                rollouts,
                _first_and_last(means, run, "train"),
                _last_and_change(means, run, "val"),
                alarms.get(run),
            ),
            (_minute(began), _minute(ended)),
        )
        for run, rollouts, waves, began, ended in store.query(RUNS, {"runs": names}).iter_rows()
    }


def home_runs(home: Path) -> Grid:
    """Return the runs of a home, for a store that is away."""
    return Grid("Runs", RUN_COLUMNS, _home_rows(home, set()), f"none in {home}/runs")


def _home_rows(home: Path, stored: Collection[str]) -> tuple[tuple[Cell, ...], ...]:
    """Return the runs of a home but those that are stored.

    Their names are no links, because the store has no page of them.
    """
    none = (None,) * (len(RUN_COLUMNS) - 2)
    names = (name for name in list_runs(home)[:MAX_RUNS] if name not in stored)
    return tuple((name, run_state(home, name).progress, *none) for name in names)


def _first_and_last(means: pl.DataFrame, run: str, mode: str) -> Spark | None:
    """Return the mean reward by wave, with those of the first and the last wave in words."""
    label, rewards = _rewards(means, run, mode)
    if not rewards:
        return None
    values = tuple(mean for mean, _ in rewards)
    ends = [format_cell(value) for value in (values[0], values[-1])]
    return Spark(values, label + (" to ".join(ends) if len(values) > 1 else ends[0]))


def _last_and_change(means: pl.DataFrame, run: str, mode: str) -> Spark | None:
    """Return the mean reward by wave, with the last one, its 95 % interval and its difference to
    the first one in words.
    """
    label, rewards = _rewards(means, run, mode)
    if not rewards:
        return None
    values, (last, margin) = tuple(mean for mean, _ in rewards), rewards[-1]
    interval = "" if margin is None else f" ±{format_cell(margin)}"
    change = f", {last - values[0]:+.3f} since the first" if len(values) > 1 else ""
    return Spark(values, f"{label}{format_cell(last)}{interval}{change}")


def _rewards(
    means: pl.DataFrame, run: str, mode: str
) -> tuple[str, list[tuple[float, float | None]]]:
    """Return the evaluation and source in place of the runner's reward, if there is no such one,
    and the mean with the margin of each wave.

    The runner's reward comes first, then another evaluation by the runner.
    """
    own = means.filter(run=run, mode=mode)
    found = sorted(
        own.select("source", "name").unique().rows(),
        key=lambda one: (one[0] != "runner", one[1] != "reward", one),
    )
    if not found:
        return "", []
    source, name = found[0]
    rewards = own.filter(name=name, source=source).sort("wave").select("mean", "margin").rows()
    by = "" if source == "runner" else f"by the {source} "
    return f"{'' if name == 'reward' else f'{name} '}{by}", rewards


def running_tiles(home: Path) -> Tiles:
    """Return the runs of a home on which a process works, with their progress."""
    states = {run: run_state(home, run) for run in list_runs(home)[:MAX_RUNS]}
    return Tiles(
        "Running now",
        tuple(
            Tile(f"{run} runs now", f"{state.updates or 0:,}", f"of {state.planned:,} updates")
            if state.planned
            else Tile(f"{run} runs now", f"{state.updates or 0:,}", "updates")
            for run, state in states.items()
            if state.status is RunStatus.RUNNING
        ),
    )


def _newest_datasets(home: Path) -> dict[str, WaveDataset]:
    """Return the dataset of the last training wave of each run that has one."""
    newest: dict[str, WaveDataset] = {}
    for path, manifest in list_manifests(home):
        for key in manifest.get("waves", {}):
            run, _, wave = key.rpartition("/train/")
            if run and wave.isdigit():
                found = (int(wave), path, str(manifest["id"]))
                newest[run] = max(newest.get(run, found), found)
    return newest


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
        _trial(folder),
        len(versions),
        dataset,
        f"{version.created_at:%Y-%m-%d %H:%M}" if version else None,
    )


def _trial(folder: Path) -> str | None:
    """Return the version that is on trial, and its stage."""
    with suppress(BadPolicyFile):  # the page of the deployment has the error
        if (found := find_candidate(folder)) is not None:
            return f"{found.version}, {found.stage}"
    return None


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
