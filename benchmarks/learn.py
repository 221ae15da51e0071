"""Updates of 96 rollouts until the two-turn task's reward is 0.95: losses, modes and controls.

A tiny random policy learns with the real vLLM and verl. In a control something is wrong, and the
reward must stay low: the rewards are those of other rollouts, the trained tokens are those of the
next row, or each call has the advantage of the other one.
"""

import argparse
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.support.corrupted_run import CORRUPTIONS

from ltrain_train.processes import free_port

PROJECT = Path("tests/end_to_end/two_turn").resolve()
TINY = Path("tests/train/tiny.py").resolve()
BAR, UPDATES, TASKS = 0.95, 40, 480
LOSSES = {
    "grpo": 'loss = "vanilla"',
    "cispo": 'loss = "cispo"',
    "ppo with a critic": 'loss = "vanilla"',
}
"""The lines of [train] of each loss."""
LEARNING_RATE = "learning_rate = 1e-2"
"""The line in place of those of the tests, with which learning is slower and no policy loses it."""
PPO = "ppo with a critic"
SHUFFLED = "rewards shuffled"
CONTROLS = (SHUFFLED, *CORRUPTIONS)


@dataclass(frozen=True)
class Cell:
    """One run of the table."""

    loss: str
    mode: str
    control: str = ""

    @property
    def name(self) -> str:
        return ", ".join(filter(None, (self.loss, self.mode, self.control)))

    @property
    def command(self) -> list[str]:
        if self.control in CORRUPTIONS:
            return ["-m", "benchmarks.support.corrupted_run", self.control]
        return ["-m", "ltrain"]


def write_project(cell: Cell, folder: Path) -> Path:
    """Write the tiny model, its tasks and the recipe of a cell; return the recipe."""
    shutil.copytree(PROJECT, folder, ignore=shutil.ignore_patterns("__pycache__"))
    subprocess.run([sys.executable, TINY, folder / "tiny", "1"], check=True, capture_output=True)
    chance = random.Random(0)
    with (folder / "tasks.jsonl").open("w") as tasks:
        for number in range(TASKS):
            words = (10, *(chance.randrange(512) for _ in range(4)), 20)
            text = " ".join(f"w{word}" for word in words)
            tasks.write(json.dumps({"id": f"t{number}", "input": text}) + "\n")
    recipe = folder / ("control.toml" if cell.control == SHUFFLED else "ltrain.toml")
    text = re.sub(r"updates = \d+", f"updates = {UPDATES}", recipe.read_text())
    text = re.sub(r"learning_rate = .*\nentropy_coefficient = .*", LEARNING_RATE, text)
    own = f'{LOSSES[cell.loss]}\nmode = "{cell.mode}"\nmax_staleness = 2'
    text = text.replace('loss = "vanilla"', own)
    if cell.loss == PPO:  # it compares no rollouts of a task with each other
        text = re.sub(r"\[credit\.process\][^[]*", "", text).replace('"grpo"', '"gae"')
        text = text.replace("rollouts_per_task = 8", "rollouts_per_task = 1")
        text = text.replace("tasks_per_wave = 12", "tasks_per_wave = 96")
    if cell.control:
        text += "drift_limit = 1e9\ndrift_warning = 1e9\n"
    recipe.write_text(text)
    return recipe


def run(cell: Cell, folder: Path) -> dict[str, Any]:
    """Train until the bar is reached or the updates are made; return the result."""
    recipe = write_project(cell, folder)
    arguments = ["run", str(recipe), "--model", str(folder / "tiny"), "--json"]
    began, rewards = time.monotonic(), list[float]()
    with (
        (folder / "errors.log").open("w") as errors,
        subprocess.Popen(
            [sys.executable, *cell.command, *arguments],
            env=environment(folder),
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            rewards.append(json.loads(line)["evaluations"]["true"])
            if rewards[-1] >= BAR:
                process.send_signal(signal.SIGINT)
                break
        process.stdout.read()
    if not rewards or (process.returncode and rewards[-1] < BAR):
        raise SystemExit((folder / "errors.log").read_text())
    reached = rewards[-1] >= BAR
    return {
        "cell": cell.name,
        "updates_to_bar": len(rewards) - 1 if reached else None,
        "best": round(max(rewards), 3),
        "last": round(rewards[-1], 3),
        "seconds": round(time.monotonic() - began),
    }


def environment(folder: Path) -> dict[str, str]:
    """Return the environment of a run with ports of its own."""
    otlp, store, gateway = (f"http://127.0.0.1:{free_port()}" for _ in range(3))
    return {
        **os.environ,
        "LTRAIN_HOME": str(folder / ".ltrain"),
        "OTEL_EXPORTER_OTLP_ENDPOINT": otlp,
        "LTRAIN_STORE": store,
        "LTRAIN_GATEWAY": gateway,
    }


def cells(names: Sequence[str]) -> list[Cell]:
    """Return the cells whose names contain one of `names`; all without names."""
    table = [Cell(loss, mode) for loss in LOSSES for mode in ("sync", "async")]
    table += [Cell("grpo", "sync", control) for control in CONTROLS]
    return [cell for cell in table if not names or any(name in cell.name for name in names)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cells", nargs="*", help="parts of the names of cells; default: all")
    results = []
    for cell in cells(parser.parse_args().cells):
        with tempfile.TemporaryDirectory(prefix="ltrain-learn-") as folder:
            results.append(run(cell, Path(folder) / "project"))
        print(json.dumps(results[-1]), flush=True)
    learned = [each for each in results if not any(name in each["cell"] for name in CONTROLS)]
    controls = [each["best"] for each in results if each not in learned]
    counts = [each["updates_to_bar"] for each in learned]
    print(
        json.dumps(
            {
                "name": "learn",
                "value": None if None in counts else max(counts, default=None),
                "unit": f"most updates of 96 rollouts to a reward of {BAR} (bar: {UPDATES})",
                "peer": max(controls, default=None),
                "ratio": None,
            }
        )
    )


if __name__ == "__main__":
    main()
