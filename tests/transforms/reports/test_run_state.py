"""The state of a run: by the journal, and by whether a process holds its folder."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import polars as pl
import pytest
from tests.transforms.reports.test_overview import waves

from ltrain_collector.store import Store
from ltrain_instrument.files import hold_file
from ltrain_transforms.datasets import Dataset
from ltrain_transforms.reports import RunTable, home_runs, list_runs, run_state, run_watermark
from ltrain_transforms.reports.run_state import dropped_share
from ltrain_transforms.run_events import (
    JOURNAL,
    AnyEvent,
    Failed,
    Finished,
    Opened,
    Published,
    Started,
    Trained,
)

__all__ = ["waves"]
HELD = """
import sys, time
from pathlib import Path
from ltrain_instrument.files import hold_file
hold_file(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(600)
"""
UPDATES: tuple[AnyEvent, ...] = (
    Started(run="demo", recipe="r", policies={"sql": 0}),
    Opened(updates=3),
    Trained(policy="sql", wave=0, changed=True),
    Published(policy="sql", wave=0, version=1),
    Trained(policy="sql", wave=1, changed=False),
    Trained(policy="sql", wave=2, changed=True),
)


def write(home: Path, events: Sequence[AnyEvent], cut: str = "") -> Path:
    """Write the journal of the run `demo`."""
    folder = home / "runs" / "demo"
    folder.mkdir(parents=True, exist_ok=True)
    lines = "".join(f"{event.model_dump_json()}\n" for event in events)
    (folder / JOURNAL).write_text(lines + cut)
    return folder


def test_a_run_is_running_until_its_process_ends_however_it_ends(tmp_path: Path) -> None:
    folder = write(tmp_path, UPDATES)
    assert run_state(tmp_path, "demo").progress == "stopped, 2 of 3 updates"
    command = [sys.executable, "-c", HELD, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"held\n"
        assert run_state(tmp_path, "demo").progress == "running, 2 of 3 updates"
        process.send_signal(signal.SIGKILL)
    assert run_state(tmp_path, "demo").progress == "stopped, 2 of 3 updates"


@pytest.mark.parametrize(
    ("last", "state"),
    [
        (Finished(), "finished, 2 of 3 updates"),
        (Failed(error="no space"), "failed, 2 of 3 updates"),
        (Opened(updates=1), "stopped, 2 of 1 update"),
        (Opened(updates=None), "stopped"),
    ],
    ids=str,
)
def test_the_last_event_of_a_run_without_a_process(
    tmp_path: Path, last: AnyEvent, state: str
) -> None:
    folder = write(tmp_path, (*UPDATES, last), cut='{"event": "publ')
    found = run_state(tmp_path, "demo")
    assert found.progress == state
    assert found.error == ("no space" if isinstance(last, Failed) else "")
    descriptor = hold_file(folder)
    assert run_state(tmp_path, "demo").progress.startswith("running")
    assert run_state(tmp_path, "demo").error == ""  # the error of an earlier process
    os.close(descriptor)


def test_an_update_counts_when_every_policy_has_it(tmp_path: Path) -> None:
    started = Started(run="demo", recipe="r", policies={"sql": 0, "critic": 0})
    first, second = (Trained(policy=name, wave=0, changed=False) for name in ("sql", "critic"))
    write(tmp_path, (started, first))
    assert run_state(tmp_path, "demo").progress == "stopped, 0 updates"
    write(tmp_path, (started, first, second))
    assert run_state(tmp_path, "demo").progress == "stopped, 1 update"


def test_a_run_without_a_readable_record_is_unknown(tmp_path: Path) -> None:
    assert run_state(tmp_path, "demo").progress == "unknown"
    folder = write(tmp_path, ())
    assert run_state(tmp_path, "demo").progress == "unknown"
    (folder / JOURNAL).write_text('{"event": "of another version"}\n')
    assert run_state(tmp_path, "demo").progress == "unknown"
    assert list_runs(tmp_path) == []
    (folder / JOURNAL).unlink()
    (folder / "run.json").write_text(json.dumps({"name": "demo", "finished": False}))
    assert run_state(tmp_path, "demo").progress == "stopped"
    (folder / "run.json").write_text(json.dumps({"name": "demo", "finished": True}))
    assert run_state(tmp_path, "demo").progress == "finished"
    assert list_runs(tmp_path) == ["demo"]


def test_a_run_without_spans_is_listed_and_the_watermark_follows_journal_and_spans(
    store: Store, tmp_path: Path
) -> None:
    folder = write(tmp_path, UPDATES[:2])
    ((run, state, *cells),) = RunTable().read(store, tmp_path).rows
    assert (run, state, set(cells)) == ("demo", "stopped, 0 of 3 updates", {None})
    assert home_runs(tmp_path).rows == RunTable().read(store, tmp_path).rows
    before = run_watermark(store, tmp_path, "demo")
    assert before == run_watermark(store, tmp_path, "demo")
    write(tmp_path, UPDATES[:3])
    trained = run_watermark(store, tmp_path, "demo")
    descriptor = hold_file(folder)
    held = run_watermark(store, tmp_path, "demo")
    os.close(descriptor)
    assert len({before, trained, held}) == 3


def test_the_share_of_executions_without_a_row(tmp_path: Path) -> None:
    (tmp_path / "samples").mkdir()
    rows = pl.DataFrame({"execution_id": ["a", "a", "b", "c"]})
    rows.write_parquet(tmp_path / "samples" / "0.parquet")
    for executions, share in ((4, 0.25), (3, 0.0), (0, None)):
        manifest = {"id": "d", "counts": {"executions": executions}}
        (tmp_path / "manifest.json").write_text(json.dumps(manifest))
        assert dropped_share(tmp_path) == share
    (tmp_path / "samples" / "0.parquet").write_bytes(b"damaged")
    (tmp_path / "manifest.json").write_text(json.dumps({"id": "d", "counts": {"executions": 4}}))
    assert dropped_share(tmp_path) is None
    assert dropped_share(tmp_path / "none") is None


def test_a_stored_run_is_listed_once(waves: list[Dataset], store: Store, tmp_path: Path) -> None:
    before = run_watermark(store, tmp_path, "demo")
    write(tmp_path, UPDATES)
    ((_, state, *_),) = RunTable().read(store, tmp_path).rows
    assert state == "stopped, 2 of 3 updates"
    assert run_watermark(store, tmp_path, "demo") != before
