"""A collector, a gateway and the scripted policy, and plans of recipes with an environment."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import pytest
from tests.fork_server import ltrain_command
from tests.frameworks.model import Model
from tests.up import Up, running_up, start_server

from ltrain_collector.store import Store
from ltrain_train.rollout import Runner, RunnerEnvironment, load_tasks
from ltrain_train.runs import Plan, make_plan
from ltrain_train.store import home_secret
from ltrain_train.workers import RolloutResult
from ltrain_transforms.calls import calls
from ltrain_transforms.recipe import Source
from ltrain_transforms.source import Selection, read_spans

ROOT = Path(__file__).parents[2]
GYMS = Path(__file__).parent / "gyms"
ARRIVE_S = 30.0
"""Timeout of spans that arrive within two seconds."""
RECIPE = """
[source]
run = "{run}"
[rollout]
environment = "{environment}"
python = "{python}"
workers = 1
{more}
[[policy]]
name = "policy"
[[reward]]
name = "answer"
evaluation = "reward"
"""


@dataclass(frozen=True)
class Stack:
    """A collector, a gateway, and the scripted policy behind it."""

    home: Path
    up: Up
    gateway: str

    def play(self, plan: Plan, count: int) -> list[RolloutResult]:
        """Run the first tasks of a plan, each once."""
        tasks = load_tasks(Path(plan.rollout.tasks))[:count]
        environment = RunnerEnvironment(
            run=plan.name,
            home=self.home,
            gateway=self.gateway,
            secret=home_secret(self.home),
            policy="policy",
        )
        with Runner(plan.program, environment) as runner:
            results = runner.run("train", 0, tasks, 1, sampling={"temperature": 1.0})
        return sorted(results, key=task_of)

    def calls(self, plan: Plan, count: int) -> pl.DataFrame:
        """Return the model calls of a run as soon as there are so many, or after a while."""
        source = Source.model_validate({"run": plan.name, "mode": "train"})
        deadline = time.monotonic() + ARRIVE_S
        while True:
            with Store.open(self.up.dsn) as store:
                spans, _ = read_spans(store, source, Selection())
            rows = calls(spans)[0].filter(pl.col("kind") == "llm")
            if len(rows) >= count or time.monotonic() > deadline:
                return rows.sort("execution_id", "start")


def task_of(result: RolloutResult) -> str:
    """Return the id of a rollout's task."""
    return str(result.identity.task)


@contextmanager
def running_stack(home: Path) -> Iterator[Stack]:
    """Start the servers, with their files in `home`, and stop them."""
    model = Model()
    model.start()
    with running_up(home / "store") as up, pytest.MonkeyPatch.context() as patch:
        patch.setenv("LTRAIN_HOME", str(home))
        patch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", up.endpoint)
        serve = (ltrain_command(), "serve", "--port", "0", "--upstream", model.url)
        gateway, line = start_server(serve, os.environ, "ltrain: gateway ready at ")
        yield Stack(home, up, line.split()[4].removesuffix("/v1,"))
        gateway.terminate()
        gateway.wait()
    model.stop()


def python_of(environment: str) -> Path:
    """Return the Python of an environment of the tests."""
    return ROOT / f".venv-{environment}" / "bin" / "python"


def plan_of(environment: str, python: Path, folder: Path = GYMS, more: str = "") -> Plan:
    """Return the plan of a recipe with the environment, whose package is in that of `python`."""
    if not python.exists():
        pytest.fail(f"{python.parents[1].name} is missing: make test-frameworks makes it")
    run = environment.replace(":", "-").replace("/", "-").replace("@", "-")
    text = RECIPE.format(run=run, environment=environment, python=python, more=more)
    path = folder / f"ltrain-{os.getpid()}.toml"  # other tests plan in this folder at this time
    path.write_text(text)
    try:
        return make_plan(path, model=None, updates=None)
    finally:
        path.unlink()
