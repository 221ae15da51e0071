"""Agents of the frameworks train with defaults: one update by real rollouts, vLLM and learner."""

import json
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from benchmarks.learn import environment
from tests.frameworks import completeness
from tests.frameworks.short_answers import write_model
from tests.frameworks.ways import WAYS

ROOT = Path(__file__).parents[2]
FOLDER = Path(__file__).parent / "training"
AGENT = Path(__file__).parent / "agents" / "training_ways.py"
MOST_DRIFT = 1e-3
"""Largest drift (k3) of an update in bf16; without the masks it is above 1."""


CHANGE = ["frameworks", "openai2"]
"""The environments of a change; those of all other ways are part of the nightly run."""
OTHERS = [pytest.param(each, marks=pytest.mark.nightly) for each in WAYS if each not in CHANGE]


@dataclass(frozen=True)
class Trained:
    """The results of one update."""

    wave: dict[str, Any]
    calls: pl.DataFrame
    """The model calls, each with its task."""
    samples: pl.DataFrame
    drops: pl.DataFrame


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("policy") / "model")


@pytest.fixture
def folder() -> Iterator[Path]:
    """Yield a new folder whose path is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="lw-", dir="/tmp") as name:
        yield Path(name)


def train(environment_name: str, model: Path, folder: Path) -> Trained:
    """Train once on three rollouts of each way of an environment."""
    python = ROOT / f".venv-{environment_name}" / "bin" / "python"
    if not python.exists():
        pytest.fail(f"{python.parents[1].name} is missing: make test-frameworks makes it")
    tasks = [json.dumps({"id": name, "input": name}) for name in WAYS[environment_name]]
    (folder / "tasks.jsonl").write_text("\n".join(tasks))
    shutil.copy(FOLDER / "drawn_reward.py", folder)
    fields = {"run": environment_name, "agent": AGENT, "python": python, "tasks": len(tasks)}
    recipe = folder / "ltrain.toml"
    recipe.write_text((FOLDER / recipe.name).read_text().format(**fields))
    command = [sys.executable, "-m", "ltrain", "run", str(recipe), "--from-clickhouse", "--json"]
    done = subprocess.run(
        [*command, "--model", str(model)],
        env=environment(folder),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    [dataset] = (folder / ".ltrain" / "datasets").glob("*/*/samples")
    tables = {name: pl.read_parquet(dataset.parent / name) for name in ("calls", "executions")}
    calls = tables["calls"].filter(pl.col("kind") == "llm")
    return Trained(
        json.loads(done.stdout),
        calls.join(tables["executions"].select("execution_id", "task_id"), on="execution_id"),
        pl.read_parquet(dataset),
        pl.read_parquet(dataset.parent / "drops"),
    )


@pytest.mark.parametrize("environment_name", [*CHANGE, *OTHERS])
def test_each_way_trains_with_defaults(environment_name: str, model: Path, folder: Path) -> None:
    trained = train(environment_name, model, folder)
    wave, ways = trained.wave, WAYS[environment_name]
    assert (wave["published"], wave["alarms"], wave["undone"]) == (1, [], 0)
    assert set(trained.calls["task_id"]) == ways.keys()
    # every call of every way is trained
    assert trained.drops.filter(pl.col("reason") != "not_a_call").to_dicts() == []
    calls = trained.samples.explode("transition_ids", "call_constraints")
    assert sorted(calls["transition_ids"]) == sorted(trained.calls["call_id"])
    assert all(sum(mask) > 0 for mask in trained.samples["response_mask"])
    # the learner has the server's distributions, of masked and of free tokens
    metrics = wave["metrics"]
    assert metrics["drift_tokens"] == sum(sum(mask) for mask in trained.samples["response_mask"])
    assert metrics["drift_k3"] < MOST_DRIFT
    assert metrics["drift_outliers"] == 0
    tasks = dict(trained.calls.select("call_id", "task_id").iter_rows())
    grammars: defaultdict[str, set[str]] = defaultdict(set)
    for call, constraint in calls.select("transition_ids", "call_constraints").iter_rows():
        if constraint is not None:
            grammars[tasks[call]].add(json.loads(constraint)["kind"])
    completeness.check_training(environment_name, ways, grammars)
