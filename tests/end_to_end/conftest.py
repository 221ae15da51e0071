"""One run of the whole loop on a tiny policy, whose traces several tests check."""

import importlib.util
import json
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from benchmarks.learn import environment
from tests.frameworks.conftest import model as model

from ltrain_train.gateway import GatewayClient, VllmOptions
from ltrain_train.gateway.serving.vllm import Vllm
from ltrain_train.processes import Children, Command

HERE = Path(__file__).parent
TRAIN = HERE.parent / "train"
TASKS = 480
ENOUGH = 0.95
"""Share of the attainable reward that ends the training of `learned`."""
FEW_UPDATES = 10
"""Updates of `learned` on a change; all but the tests of what it has learned need three."""
MORE_UPDATES, MOST_UPDATES = 12, 60
"""Updates of an extension, and the maximum of all updates; most policies need 29 to 33."""
WAIT = 300.0
"""Seconds for a start that takes five on an idle machine."""


def load(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    spec.loader.exec_module(module)
    return module


@dataclass(frozen=True)
class Project:
    """A folder with an agent, its tasks, its recipe and a tiny random policy."""

    folder: Path
    environ: dict[str, str]

    @property
    def home(self) -> Path:
        return self.folder / ".ltrain"

    @property
    def model(self) -> Path:
        return self.folder / "tiny"

    @property
    def store(self) -> str:
        return f"chdb://{self.home / 'store'}"

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "ltrain", *arguments]

    def training(self, recipe: str, *options: str) -> list[str]:
        run = self.command("run", str(self.folder / recipe), "--from-clickhouse")
        return [*run, "--model", str(self.model), "--json", *options]

    def train(self, recipe: str, *options: str) -> list[dict[str, Any]]:
        command = self.training(recipe, *options)
        done = subprocess.run(
            command, env=self.environ, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    def sql(self, query: str, *arguments: str) -> list[dict[str, Any]]:
        done = subprocess.run(
            self.command("sql", query, "--store", self.store, "--format", "json", *arguments),
            env=self.environ,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        rows: list[dict[str, Any]] = json.loads(done.stdout)
        return rows


@pytest.fixture(scope="session")
def project(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Project]:
    """Return a function that makes a project of a name from a folder, with its own ports."""

    def make(name: str, source: str = "two_turn") -> Project:
        folder = tmp_path_factory.mktemp(name) / source
        shutil.copytree(HERE / source, folder, ignore=shutil.ignore_patterns("__pycache__"))
        load(TRAIN / "tiny.py").write_model(folder / "tiny", seed=1)
        chance = random.Random(0)
        with (folder / "tasks.jsonl").open("w") as tasks:
            for number in range(TASKS):
                words = (10, *(chance.randrange(512) for _ in range(4)), 20)
                words_text = " ".join(f"w{word}" for word in words)
                tasks.write(json.dumps({"id": f"t{number}", "input": words_text}) + "\n")
        return Project(folder, environment(folder))

    return make


def wait_ready(gateway: str) -> None:
    """Wait until a gateway answers calls; a run would start another one beside it."""
    client = GatewayClient(gateway, "unused" * 8)
    end = time.monotonic() + WAIT
    while not client.is_ready():
        assert time.monotonic() < end, f"no gateway answers at {gateway}"
        time.sleep(0.1)
    client.close()


@dataclass(frozen=True)
class Learned:
    """The results of a run: its waves, its project, and the calls between gateway and vLLM."""

    project: Project
    waves: list[dict[str, Any]]
    recorded_calls: list[Any]


@pytest.fixture(scope="session")
def learned(project: Callable[[str], Project], pytestconfig: pytest.Config) -> Iterator[Learned]:
    """Train with a recording proxy between gateway and vLLM; in the nightly run, long enough."""
    made = project("learned")
    recorder = load(TRAIN / "gateway" / "recorder.py")
    with Children() as children:
        vllm = Vllm(
            children,
            name="two",
            options=VllmOptions(dtype="float32"),
            log=made.folder / "vllm.log",
            sockets=made.folder / "sockets",
        )
        vllm.start(made.model)
        with recorder.Recorder(vllm.socket) as between, Children() as before:
            port = made.environ["LTRAIN_GATEWAY"].rpartition(":")[2]
            serve = ("serve", str(made.model), "--policy", "two", "--port", port)
            before.start(
                "gateway",
                Command(
                    argv=made.command(*serve, "--upstream", between.url),
                    env=made.environ,
                    log=made.folder / "gateway.log",
                ),
            )
            wait_ready(made.environ["LTRAIN_GATEWAY"])
            nightly = pytestconfig.getoption("--nightly")
            waves = train_enough(made) if nightly else train(made, FEW_UPDATES)
            yield Learned(made, waves, between.recorded_calls)


def train_enough(made: Project) -> list[dict[str, Any]]:
    """Train by the recipe, and extend the run while the reward is not enough."""
    waves = made.train("ltrain.toml")
    while len(waves) < MOST_UPDATES and _best(waves) < ENOUGH:
        waves += train(made, len(waves) + MORE_UPDATES)
    return waves


def train(made: Project, updates: int) -> list[dict[str, Any]]:
    """Train by the recipe until the run has made so many updates; return the new waves."""
    return made.train("ltrain.toml", "--updates", str(updates))


def _best(waves: list[dict[str, Any]]) -> float:
    return max(float(wave["evaluations"]["true"]) for wave in waves)
