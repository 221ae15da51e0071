"""Starts `ltrain run --from-dataset` on a chain of datasets, kills it, and reads the curve."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import polars as pl
import psutil
from tests.chaos.driver import WAIT, Project, Run, until
from tests.otlp import insert_otlp
from tests.transforms.conftest import RECIPE, Scene
from tests.transforms.datasets.test_lineage import REWARDS

from ltrain_collector.store import Store
from ltrain_train.policy import Policies
from ltrain_transforms.datasets import build
from ltrain_transforms.policy_file import LEDGER
from ltrain_transforms.recipe import Recipe

POLICY = "sql"
STEPS = 4
"""Optimizer steps of an update."""
TRAIN = f"""
[train]
dtype = "fp32"
lora_rank = 4
learning_rate = 1e-2
steps_per_wave = {STEPS}
max_staleness = 100
# the rows have made-up log-probabilities
drift_warning = 1e9
drift_limit = 1e9
"""
Victims = Literal["run", "everything"]
"""The main process, whose children must end with it, or all of its processes at once."""
WALL = ("seconds",)


@dataclass(frozen=True)
class Point:
    """One version of the curve; two runs are equal if all of their points are."""

    version: int
    parent: int | None
    dataset: str | None
    files: dict[str, str]
    """SHA-256 of the version's files: weights and ledger."""
    steps: int
    """Optimizer steps until this version."""
    rollouts: tuple[str, ...]
    """Those that it was trained on."""


@dataclass
class OfflineProject(Project):
    """A folder with datasets, a recipe and a tiny policy; it identifies its processes."""

    results: dict[int, dict[str, Any]] = field(default_factory=dict)
    """What the commands that succeeded printed, by the number of their dataset."""

    def prepare(self, model: Path) -> None:
        """Write everything that the runs need; `updates` is the number of datasets."""
        self.folder.mkdir(parents=True)
        shutil.copytree(model, self.folder / "tiny")
        (self.folder / "ltrain.toml").write_text(RECIPE + TRAIN)
        recipe = Recipe.load(self.folder / "ltrain.toml")
        for number in range(self.updates):
            with Store.open(f"chdb://{self.folder}/store-{number}") as store:
                store.migrate()
                insert_otlp(store, _traces(number))
                build(store, recipe, self.dataset(number))
        inherited = {
            name: text for name, text in os.environ.items() if not name.startswith("LTRAIN_")
        }
        self.environ = {
            **inherited,
            "LTRAIN_HOME": str(self.home),
            "LTRAIN_GATEWAY": "http://127.0.0.1:9",
            "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9",
            "PYTHONUNBUFFERED": "1",
            "TMPDIR": str(self.temporary),
        }

    def dataset(self, number: int) -> Path:
        return self.folder / "datasets" / str(number)

    def train(self, number: int) -> Run:
        """Start the command that trains on a dataset, or start it again."""
        output = self.folder / f"out-{len(self.runs)}"
        command = [
            *(sys.executable, "-m", "ltrain", "run", str(self.folder / "ltrain.toml"), "--json"),
            *("--from-dataset", str(self.dataset(number)), "--model", str(self.folder / "tiny")),
        ]
        with output.open("wb") as writing, output.with_suffix(".err").open("wb") as errors:
            process = subprocess.Popen(
                command,
                stdout=writing,
                stderr=errors,
                env=self.environ,
                cwd=self.folder,
                start_new_session=True,
            )
        self.runs.append(Run(process, output))
        return self.runs[-1]

    def train_all(self, kills: Mapping[int, Sequence[tuple[float, Victims]]] = {}) -> None:
        """Train on one dataset after the other.

        Args:
            kills: by the number of a dataset, after how many seconds its command is killed, each
                time it is started; and what is killed.
        """
        for number in range(self.updates):
            for seconds, victims in kills.get(number, ()):
                run = self.train(number)
                with suppress(subprocess.TimeoutExpired):
                    run.process.wait(seconds)
                    self._finish(number, run)
                self.kill_run(run, victims)
                until(lambda: not self.processes(), "the end of the command's processes")
            self._finish(number, self.train(number))

    def _finish(self, number: int, run: Run) -> None:
        """Wait for the command's end, and keep what it printed.

        It must have trained, or have said that a command before it has.
        """
        status = run.process.wait(WAIT)
        errors = run.output.with_suffix(".err").read_text()
        assert "Traceback" not in errors, f"{run.text}\n{errors}"
        if status:
            assert f"was trained on them before (v{number + 1} on" in errors, errors
        else:
            self.results[number] = json.loads(run.text)

    def kill_run(self, run: Run, victims: Victims) -> None:
        """End the command without a chance to clean up."""
        if victims == "everything":
            for process in self.processes():
                with suppress(psutil.Error):
                    process.send_signal(signal.SIGSTOP)  # none sees another one's death
            for process in self.processes():
                with suppress(psutil.Error):
                    process.kill()
        with suppress(ProcessLookupError):
            os.killpg(run.process.pid, signal.SIGKILL)
        run.process.wait(WAIT)

    def curve(self) -> list[Point]:
        """Return the lineage of the current version, oldest first, without the model."""
        policies, points = Policies(self.home), []
        version: int | None = policies.current(POLICY)
        while version:
            points.append(self._point(policies, version))
            version = points[-1].parent
        return points[::-1]

    def _point(self, policies: Policies, version: int) -> Point:
        manifest = policies.read_version(POLICY, version)
        found = policies.find_checkpoint(POLICY, version)
        assert found is not None, manifest
        ledger = pl.read_parquet(policies.path(POLICY, version) / LEDGER)
        return Point(
            version=version,
            parent=manifest.parent,
            dataset=manifest.dataset,
            files={name: file.sha256 for name, file in manifest.files.items()},
            steps=json.loads((found[1] / "learner.json").read_text())["steps"],
            rollouts=tuple(ledger["rollout"]),
        )

    def metrics(self) -> dict[int, dict[str, float]]:
        """Return the loss, the gradient norm and all others by the number of their dataset.

        A command that was killed between its publication and its output has none.
        """
        return {
            number: {name: value for name, value in result["metrics"].items() if name not in WALL}
            for number, result in self.results.items()
        }


def _traces(number: int) -> bytes:
    """Return the spans of a dataset's rollouts: four groups of four."""
    scene = Scene(run="demo")
    for task in range(4):
        for sample, reward in enumerate(REWARDS):
            rollout = scene.attempt(task=f"d{number}-t{task}", sample=sample)
            rollout.dispatch()
            first = 10 + 40 * number + 8 * task
            rollout.llm(prompt=range(first, first + 24), response=range(first + sample, first + 32))
            rollout.llm("rewrite", (7, 8 + task), (9, 10 + sample, 11))
            rollout.evaluate(reward)
            rollout.close()
    return scene.request()
