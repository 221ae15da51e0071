"""An update of text_to_sql beside four busy processes and alone: its attempts by outcome.

The busy machine must cause no timeout and no failure, and no row of an attempt that ended as
`infra`.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import polars as pl
from benchmarks.example import EXAMPLES, MODEL, train

from ltrain_train.rollout import read_entry

RECIPE = EXAMPLES / "text_to_sql/ltrain.toml"
BUSY = 4
"""Processes that compute beside the run."""


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Keep so many processes computing during the block."""
    command = [sys.executable, "-c", "while True: pass"]
    processes = [subprocess.Popen(command) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def measure(busy: int, updates: int) -> dict[str, Any]:
    """Run the recipe beside `busy` processes; return its attempts and rows."""
    with tempfile.TemporaryDirectory(prefix="ltrain-busy-") as name, busy_processes(busy):
        home, began = Path(name) / ".ltrain", time.monotonic()
        train(RECIPE, 0, Path(name), MODEL, "--updates", str(updates))
        seconds, load = round(time.monotonic() - began), os.getloadavg()[1]
        (log,) = home.glob("runs/*/attempts.jsonl")
        entries = filter(None, map(read_entry, log.read_bytes().splitlines()))
        lines = [each for each in entries if "closed" not in each]
        ended = {f"{each['rollout']}.{each['attempt']}": each.get("outcome") for each in lines}
        rows = pl.concat(map(_read_executions, sorted(home.glob("datasets/**/samples"))))
    late = {attempt for attempt, outcome in ended.items() if outcome in ("infra", None)}
    return {
        "busy": busy,
        "load": round(load, 1),
        "seconds": seconds,
        "attempts": dict(Counter(map(str, ended.values()))),
        "rows": len(rows),
        "rows_of_late_attempts": rows.is_in(sorted(late)).sum(),
    }


def _read_executions(folder: Path) -> pl.Series:
    return pl.read_parquet(folder, columns=["execution_id"])["execution_id"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--updates", type=int, default=1)
    arguments = parser.parse_args()
    runs = [measure(busy, arguments.updates) for busy in (BUSY, 0)]
    for run in runs:
        print(json.dumps(run))
    timeouts = [run["attempts"].get("timeout", 0) for run in runs]
    value = timeouts[0] - timeouts[1] + runs[0]["rows_of_late_attempts"]
    unit = "timeouts that only the busy run has, and its rows of late attempts, at most 0"
    print(json.dumps({"name": "busy", "value": value, "unit": unit}))


if __name__ == "__main__":
    main()
