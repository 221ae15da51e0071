"""The demo: time without generation or model, score on 192 held-out questions, sync against async.

The demo's seconds are those of its command, after set-up. Those without rollouts and without
training are named by their cause: the start, the end, and what the loop does between.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from threading import Event, Thread
from typing import Any

from benchmarks.learn import environment

from ltrain_train.runs import Journal, responds, split_time

LTRAIN = str(Path(sys.executable).with_name("ltrain"))
MODEL = Path(".ltrain/models/smollm2").resolve()
EXAMPLE = Path("examples/text_to_sql")
MODES = {"sync": "", "async": 'mode = "async"\n'}
"""The lines of [train] by the name of the mode."""
BUSY = ("generate", "train")
CAUSES = (*BUSY, "load", "build", "settle")
"""The phases of a run; where several run at a moment, it counts for the first one."""


class StartWatch(Thread):
    """Observes when the store and the gateway of a run answer for the first time."""

    def __init__(self, variables: dict[str, str]) -> None:
        super().__init__(daemon=True)
        store, gateway = variables["LTRAIN_STORE"], variables["LTRAIN_GATEWAY"]
        self._checks = {
            "store": (f"{store}/ping", b"Ok"),
            "gateway": (f"{gateway}/health", b'"ready"'),
        }
        self._ended = Event()
        self.ready: dict[str, float] = {}
        """Unix times by service."""

    def run(self) -> None:
        while len(self.ready) < len(self._checks) and not self._ended.wait(0.2):
            for name, (url, text) in self._checks.items():
                if name not in self.ready and responds(url, text=text):
                    self.ready[name] = time.time()

    def stop(self) -> None:
        """End the thread."""
        self._ended.set()
        self.join()


def run_demo(seed: int, folder: Path, updates: int | None) -> dict[str, Any]:
    """Run the demo once; return its scores, its seconds and its idle seconds by cause."""
    home, variables = folder / "demo", environment(folder)
    watch = StartWatch(variables)
    command = [LTRAIN, "demo", "--seed", str(seed), "--home", str(home), "--model", str(MODEL)]
    command += [] if updates is None else ["--updates", str(updates)]
    began = time.time()
    watch.start()
    subprocess.run(command, check=True, env=variables, stdout=sys.stderr)
    ended = time.time()
    watch.stop()
    journal = Journal.load(home / "runs" / "text-to-sql")
    assert journal is not None
    phases = [phase for wave in journal.waves for phase in wave.phases]
    begins = {"first rollout": min(phase.began for phase in phases)}
    scores = [wave.evaluations["reward"] for wave in journal.waves if wave.mode == "val"]
    seconds = split_time(phases, CAUSES, began, ended)
    idle = sum(value for name, value in seconds.items() if name not in BUSY)
    drift = [wave.metrics["drift_k3"] for wave in journal.waves if "drift_k3" in wave.metrics]
    return {
        "seed": seed,
        "before": round(scores[0], 3),
        "after": round(scores[-1], 3),
        "seconds": round(ended - began, 1),
        "idle_share": round(idle / (ended - began), 3),
        "seconds_of": _rounded(seconds),
        "seconds_until": _rounded({k: at - began for k, at in (watch.ready | begins).items()}),
        "validation_seconds": [
            wave.seconds["generate"] for wave in journal.waves if wave.mode == "val"
        ],
        "drift_k3": [float(f"{each:.2g}") for each in drift],
    }


def _rounded(seconds: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 1) for name, value in seconds.items()}


def train(mode: str, updates: int, folder: Path) -> dict[str, Any]:
    """Train without validation; return the rollouts a minute after the first update."""
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    recipe = folder / "ltrain.toml"
    text = recipe.read_text().replace('validation = "val.jsonl"\n', "")
    recipe.write_text(text.replace("[train]\n", f"[train]\n{MODES[mode]}"))
    command = [LTRAIN, "run", str(recipe), "--model", str(MODEL), "--updates", str(updates)]
    waves, ended = list[dict[str, Any]](), list[float]()
    with subprocess.Popen(
        [*command, "--json"], env=environment(folder), stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            ended.append(time.monotonic())
            waves.append(json.loads(line))
    if process.returncode:
        raise SystemExit(process.returncode)
    rollouts, seconds = sum(wave["rollouts"] for wave in waves[1:]), ended[-1] - ended[0]
    return {
        "mode": mode,
        "rollouts_a_minute": round(rollouts / seconds * 60, 1),
        "median_seconds": {
            name: round(median(wave["seconds"][name] for wave in waves[1:]), 1)
            for name in waves[-1]["seconds"]
        },
    }


def compare_modes(runs: int, updates: int) -> dict[str, float]:
    """Return the rollouts a minute of each mode: the median of runs, which take turns."""
    rates: dict[str, list[float]] = {mode: [] for mode in MODES}
    for _ in range(runs):
        for mode in MODES:
            with tempfile.TemporaryDirectory(prefix="ltrain-train-") as folder:
                result = train(mode, updates, Path(folder) / "project")
            print(json.dumps(result), flush=True)
            rates[mode].append(result["rollouts_a_minute"])
    return {mode: median(values) for mode, values in rates.items()}


def run_demos(seeds: Sequence[int], updates: int | None) -> dict[str, Any]:
    """Return the medians over demos with these seeds, and the least gain."""
    demos = []
    for seed in seeds:
        with tempfile.TemporaryDirectory(prefix="ltrain-train-") as folder:
            demos.append(run_demo(seed, Path(folder), updates))
        print(json.dumps(demos[-1]), flush=True)
    return {
        "idle_share": median(each["idle_share"] for each in demos),
        "demo_seconds": median(each["seconds"] for each in demos),
        "least_gain": round(min(each["after"] - each["before"] for each in demos), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="*", default=[0], help="a demo with each")
    parser.add_argument("--demo-updates", type=int, help="default: those of the recipe")
    parser.add_argument("--runs", type=int, default=2, help="runs of each mode")
    parser.add_argument("--updates", type=int, default=6, help="updates of each of these runs")
    options = parser.parse_args()
    demo = run_demos(options.seeds, options.demo_updates) if options.seeds else {}
    rates = compare_modes(options.runs, options.updates) if options.runs else {}
    ratio = round(rates["async"] / rates["sync"], 2) if rates else None
    print(
        json.dumps(
            {
                "name": "train",
                "value": demo.get("idle_share"),
                "unit": "share of the demo without rollouts and without training (bar: 0.10)",
                "peer": rates.get("sync"),
                "ratio": ratio,
                "rollouts_a_minute": rates,
                "bars": "async 1.3 times sync, gain 0.25, demo 240 s",
                **demo,
            }
        )
    )


if __name__ == "__main__":
    main()
