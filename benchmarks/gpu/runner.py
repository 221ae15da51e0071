"""Runs stages, each in a process group of its own that ends with its limit.

A stage appends its rows to a file as it measures them, so a stage that fails or is ended keeps the
rows before. Its output is in the log beside that file.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.gpu.stage import Row, Stage

GRACE = 15.0
"""Seconds in which a stage that is ended can end its servers."""
LOG_LINES = 3
"""Last lines of a log that name the cause of a failure."""


def run_stages(
    stages: Sequence[Stage], options: Sequence[str], out: Path, report: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Run the stages one after the other, and return their results.

    Args:
        options: arguments for the process of each stage.
        out: folder of the rows and logs.
        report: called with a line before and after each stage.
    """
    out.mkdir(parents=True, exist_ok=True)
    results = []
    for stage in stages:
        report(f"{stage.name}: at most {stage.limit:g} s; log: {out / stage.name}.log")
        command = [sys.executable, "-m", "benchmarks.gpu", *options, "--rows-of", stage.name]
        results.append(run_stage(stage, command, out))
        report(f"{stage.name}: {results[-1]['seconds']:g} s")
    return results


def run_stage(stage: Stage, command: Sequence[str], out: Path) -> dict[str, Any]:
    """Run the command of a stage, and return its rows; a failure is a row, too."""
    rows, log = out / f"{stage.name}.jsonl", out / f"{stage.name}.log"
    rows.write_text("")
    began = time.monotonic()
    with log.open("w") as output:
        process = subprocess.Popen(
            [*command, "--out", str(out)], stdout=output, stderr=output, start_new_session=True
        )
        try:
            fault = f"ended with status {code}" if (code := process.wait(stage.limit)) else ""
        except subprocess.TimeoutExpired:
            fault = f"ended after its limit of {stage.limit:g} s"
        finally:
            _end_group(process)
    seconds = round(time.monotonic() - began, 1)
    made = [json.loads(line) for line in rows.read_text().splitlines()]
    if fault:
        last = " ".join(log.read_text(errors="replace").splitlines()[-LOG_LINES:])
        made.append(Row("completed", 0, at_least=1, note=f"{fault}: {last}").encode())
    return {"stage": stage.name, "seconds": seconds, "rows": made}


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """End what the stage has left: itself and its servers."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE)
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
