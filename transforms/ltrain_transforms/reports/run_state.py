"""The state of a home's runs: whether a process works on each, and how far it came.

A run is `running` while a process holds its folder, which the kernel ends with the process. No
file has to be rewritten for it, so a killed run is `stopped` at once.
"""

import json
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from hashlib import sha256
from pathlib import Path

import polars as pl

from ltrain_collector.store import Store
from ltrain_instrument.files import is_held, path_component
from ltrain_transforms.datasets import Dataset
from ltrain_transforms.errors import NoDataset
from ltrain_transforms.run_events import (
    JOURNAL,
    AnyEvent,
    Failed,
    Finished,
    Opened,
    Published,
    Started,
    Trained,
    read_events,
)

ROLLOUTS_ONLY = "run.json"
"""The file of a run of `ltrain rollout`, in the folder of the run."""
WATERMARK = """
SELECT toInt64(count()) AS spans, toUnixTimestamp64Nano(max(Timestamp)) AS latest
FROM otel.spans WHERE RunId = {run:String}
"""


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
        planned = "" if self.planned is None else f" of {self.planned:,}"
        plural = "" if (self.planned or self.updates) == 1 else "s"
        return f"{self.status}, {self.updates:,}{planned} update{plural}"


def list_runs(home: Path) -> list[str]:
    """Return the names of the runs of a home, the one that was changed last first."""
    files = [*(home / "runs").glob(f"*/{JOURNAL}"), *(home / "runs").glob(f"*/{ROLLOUTS_ONLY}")]
    newest = sorted(files, key=lambda file: file.stat().st_mtime_ns, reverse=True)
    return [name for file in newest if (name := _run_name(file))]


def run_state(home: Path, run: str) -> RunState:
    """Return the state of a run, by the files of a home."""
    folder = home / "runs" / path_component(run)
    try:
        held = is_held(folder)
        if not (folder / JOURNAL).exists():
            content = json.loads((folder / ROLLOUTS_ONLY).read_bytes())
            return RunState(_status(held, bool(content["finished"])))
        events = _journal(folder / JOURNAL)
    except (OSError, ValueError, KeyError, TypeError):
        return RunState(RunStatus.UNKNOWN)
    opened = [event for event in events if isinstance(event, Opened)]
    planned = opened[-1].updates if opened else None
    updates = None if opened and planned is None else _count_updates(events)
    last = events[-1]
    if isinstance(last, Failed) and not held:
        return RunState(RunStatus.FAILED, updates, planned, last.error)
    return RunState(_status(held, isinstance(last, Finished)), updates, planned)


def run_watermark(store: Store, home: Path, run: str) -> str:
    """Return an ETag that changes with the spans, the journal and the state of a run."""
    (spans,) = store.query(WATERMARK, {"run": run}).rows()
    with suppress(OSError):
        stat = (home / "runs" / path_component(run) / JOURNAL).stat()
        spans = (*spans, stat.st_mtime_ns, stat.st_size)
    place = repr((spans, run_state(home, run)))
    return f'"{sha256(place.encode()).hexdigest()[:16]}"'


def dropped_share(dataset: Path) -> float | None:
    """Return the share of the executions of a dataset without a row; None if it has none."""
    with suppress(NoDataset, OSError, KeyError, pl.exceptions.PolarsError):
        executions = Dataset.open(dataset).counts["executions"]
        rows = pl.scan_parquet(dataset / "samples")
        trained = rows.select(pl.col("execution_id").n_unique()).collect().item()
        return 1.0 - trained / executions if executions else None
    return None


def _status(held: bool, finished: bool) -> RunStatus:
    if held:
        return RunStatus.RUNNING
    return RunStatus.FINISHED if finished else RunStatus.STOPPED


def _count_updates(events: tuple[AnyEvent, ...]) -> int:
    """Return the number of training waves that are recorded for every policy."""
    assert isinstance(events[0], Started)
    ended = dict.fromkeys(events[0].policies, 0)
    for event in events:
        if isinstance(event, Published) or (isinstance(event, Trained) and not event.changed):
            ended[event.policy] = ended.get(event.policy, 0) + 1
    return min(ended.values(), default=0)


def _run_name(file: Path) -> str | None:
    with suppress(OSError, ValueError, KeyError, TypeError):
        if file.name == ROLLOUTS_ONLY:
            return str(json.loads(file.read_bytes())["name"])
        started = _journal(file)[0]
        return started.run if isinstance(started, Started) else None
    return None


def _journal(file: Path) -> tuple[AnyEvent, ...]:
    stat = file.stat()
    return _read_journal(file.parent, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=256)
def _read_journal(folder: Path, changed: int, size: int) -> tuple[AnyEvent, ...]:
    """Return the events; a journal that has not changed is parsed once."""
    return tuple(read_events(folder))
