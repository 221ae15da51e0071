"""The state of a home's runs: whether a process works on each, and how far it came.

A run is `running` while a process holds its folder, which the kernel ends with the process. No
file has to be rewritten for it, so a killed run is `stopped` at once.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from hashlib import sha256
from pathlib import Path

import polars as pl

from ltrain_collector.store import Store
from ltrain_instrument.files import is_held, path_component
from ltrain_instrument.quantity import quantity
from ltrain_transforms.datasets import Dataset
from ltrain_transforms.errors import NoDataset
from ltrain_transforms.run_events import (
    JOURNAL,
    AnyEvent,
    Evaluated,
    Failed,
    Finished,
    Opened,
    PolicyScore,
    Published,
    Started,
    Trained,
    read_events,
)

ROLLOUTS_ONLY = "run.json"
"""The file of a run of `ltrain rollout`, in the folder of the run."""

CHANGED_SPANS = """
SELECT toString(RunId) AS run, toInt64(count()) AS spans,
    toUnixTimestamp64Nano(max(Timestamp)) AS latest,
    toUnixTimestamp64Milli(max(IngestedAt)) AS arrived
FROM otel.spans WHERE {where} GROUP BY run ORDER BY latest DESC, run LIMIT {{limit:UInt32}}
"""
CHANGED_EVALUATIONS = """
SELECT toString(run) AS run, toInt64(count()) AS evaluations
FROM otel.evaluations WHERE {where} GROUP BY run
"""

Change = tuple[int, ...]
"""Differs after spans or evaluations of the run have arrived; empty without a span."""


class RunStatus(StrEnum):
    RUNNING = "running"
    STOPPED = "stopped"
    """No process works on it, and it can continue."""
    FINISHED = "finished"
    FAILED = "failed"
    """An error ended it; the same command continues it."""
    UNKNOWN = "unknown"
    """This home has no readable record of it: another machine or program made it."""


@dataclass(frozen=True, slots=True)
class RunState:
    status: RunStatus
    updates: int | None = None
    """Training waves that have ended for every policy; None for a run that trains no policy."""
    planned: int | None = None
    """Updates after which the run ends."""
    error: str = ""
    """The error that ended it."""

    @property
    def progress(self) -> str:
        """The state as text, such as `running, 3 of 10 updates`."""
        if self.updates is None:
            return str(self.status)
        of = "" if self.planned is None else f"{self.updates:,} of "
        return f"{self.status}, {of}{quantity(self.planned or self.updates, 'update')}"


@dataclass(frozen=True, slots=True)
class _Record:
    """The state of a run that its file records."""

    run: str
    finished: bool
    updates: int | None = None
    planned: int | None = None
    error: str = ""
    scores: Mapping[tuple[str, int], PolicyScore] = field(default_factory=dict)
    """The last held-out score of each policy and version."""


def list_runs(home: Path) -> list[str]:
    """Return the names of the runs of a home, the one that was changed last first."""
    return [record.run for record in _records(home)]


def held_out_scores(home: Path, policy: str) -> dict[int, PolicyScore]:
    """Return the last held-out score of each version of a policy, of the journals of a home."""
    return {
        version: score
        for record in reversed(_records(home))
        for (name, version), score in record.scores.items()
        if name == policy
    }


def _records(home: Path) -> list[_Record]:
    """Return the readable records of a home's runs, the one that was changed last first."""
    records = list[tuple[int, str, _Record]]()
    for folder in (home / "runs").glob("*"):
        with suppress(OSError, ValueError, KeyError, TypeError):
            name, record = (
                JOURNAL if (folder / JOURNAL).exists() else ROLLOUTS_ONLY,
                _record(folder),
            )
            records.append(((folder / name).stat().st_mtime_ns, record.run, record))
    return [record for *_, record in sorted(records, key=lambda each: each[:2], reverse=True)]


def run_state(home: Path, run: str) -> RunState:
    """Return the state of a run, by the files of a home."""
    folder = home / "runs" / path_component(run)
    try:
        found, is_running = _record(folder), is_held(folder)
    except (OSError, ValueError, KeyError, TypeError):
        return RunState(RunStatus.UNKNOWN)
    if is_running:
        return RunState(RunStatus.RUNNING, found.updates, found.planned)
    if found.error:
        return RunState(RunStatus.FAILED, found.updates, found.planned, found.error)
    status = RunStatus.FINISHED if found.finished else RunStatus.STOPPED
    return RunState(status, found.updates, found.planned)


def run_watermark(store: Store, home: Path, run: str) -> str:
    """Return an ETag that changes with the spans, evaluations, journal and state of a run."""
    change = run_change(store, run)
    with suppress(OSError):
        stat = (home / "runs" / path_component(run) / JOURNAL).stat()
        change = (*change, stat.st_mtime_ns, stat.st_size)
    place = repr((change, run_state(home, run)))
    return f'"{sha256(place.encode()).hexdigest()[:16]}"'


def dropped_share(dataset: Path) -> float | None:
    """Return the share of the executions of a dataset without a row; None if it has none."""
    with suppress(NoDataset, OSError, KeyError, pl.exceptions.PolarsError):
        executions = Dataset.open(dataset).counts["executions"]
        rows = pl.scan_parquet(dataset / "samples")
        trained = rows.select(pl.col("execution_id").n_unique()).collect().item()
        return 1.0 - trained / executions if executions else None
    return None


def _record(folder: Path) -> _Record:
    """Return the record of a run; raise an error of its file where it cannot be read."""
    file = folder / JOURNAL
    if not file.exists():
        content = json.loads((folder / ROLLOUTS_ONLY).read_bytes())
        return _Record(str(content["name"]), bool(content["finished"]))
    stat = file.stat()
    return _read_journal(folder, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=1024)
def _read_journal(folder: Path, changed: int, size: int) -> _Record:
    """Return the record in a journal; one that has not changed is parsed once."""
    first, *events = read_events(folder)
    assert isinstance(first, Started)
    last = events[-1] if events else first
    opened = [event for event in events if isinstance(event, Opened)]
    planned = opened[-1].updates if opened else None
    return _Record(
        first.run,
        isinstance(last, Finished),
        None if opened and planned is None else _count_updates(first, events),
        planned,
        last.error if isinstance(last, Failed) else "",
        {
            (policy, score.version): score
            for event in events
            if isinstance(event, Evaluated) and event.mode == "val"
            for policy, score in event.policies.items()
            if score.score is not None
        },
    )


def _count_updates(started: Started, events: Sequence[AnyEvent]) -> int:
    """Return the number of training waves that are recorded for every policy."""
    ended = dict.fromkeys(started.policies, 0)
    for event in events:
        if isinstance(event, Published) or (isinstance(event, Trained) and not event.changed):
            ended[event.policy] = ended.get(event.policy, 0) + 1
    return min(ended.values(), default=0)


def latest_changes(store: Store, limit: int) -> dict[str, Change]:
    """Return the change of each run, for so many runs with the newest spans; the newest first."""
    return _changes(store, "RunId != ''", "true", {"limit": limit})


def run_change(store: Store, run: str) -> Change:
    """Return the change of a run."""
    judged = "run IN ('', {run:String})"
    return _changes(store, "RunId = {run:String}", judged, {"run": run, "limit": 1}).get(run, ())


def _changes(
    store: Store, spans: str, evaluations: str, parameters: dict[str, object]
) -> dict[str, Change]:
    """Return the changes of the runs whose spans and evaluations fulfil the conditions.

    Feedback may name no run, so it changes every one.
    """
    judged = dict(
        store.query(CHANGED_EVALUATIONS.format(where=evaluations), parameters).iter_rows()
    )
    return {
        run: (*numbers, judged.get(run, 0), judged.get("", 0))
        for run, *numbers in store.query(CHANGED_SPANS.format(where=spans), parameters).iter_rows()
    }
