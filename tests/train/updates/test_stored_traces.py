"""An offline run with a real learner: what it trains on, and what the next one goes on from."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import polars as pl
import pytest
from tests.otlp import insert_otlp, open_empty_store
from tests.transforms.conftest import NOON, RECIPE, Scene
from tests.transforms.datasets.test_lineage import add_group

from ltrain_collector.store import Store
from ltrain_train.errors import NothingToTrain
from ltrain_train.loop.watch import Watcher
from ltrain_train.policy import Policies
from ltrain_train.processes import run_lock
from ltrain_train.runs.plan import Plan
from ltrain_train.runs.report import Progress
from ltrain_train.updates.stored_traces import (
    OfflineRun,
    open_updaters,
    read_lineage,
    read_store,
    train_on,
)
from ltrain_transforms.recipe import Recipe

TINY = Path(__file__).parents[1] / "tiny.py"
TRAIN = {"dtype": "fp32", "lora_rank": 4, "drift_warning": 1e9, "drift_limit": 1e9}
WATCH = {"executions": 4}
HOUR = 3_600_000_000_000
"""The rows have made-up log-probabilities, so their drift is large."""


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    subprocess.run([sys.executable, TINY, tmp_path / "tiny"], check=True, capture_output=True)
    for name in ("LTRAIN_GATEWAY", "OTEL_EXPORTER_OTLP_ENDPOINT"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    recipe = Recipe.model_validate(tomllib.loads(RECIPE) | {"train": TRAIN, "watch": WATCH})
    home = tmp_path / "home"
    return Plan(recipe=recipe, folder=tmp_path, home=home, model=tmp_path / "tiny")


def train(plan: Plan, store: Store) -> OfflineRun:
    with run_lock(plan.home, run=plan.name, policy=plan.policy) as lock:
        data = read_store(plan, store, read_lineage(plan))
        data.check()
        versions = {plan.policy: data.lineage.version}
        with open_updaters([plan], versions, lock) as updaters:
            return train_on(plan, data, updaters[plan.policy])


def read_ledger(plan: Plan, version: int) -> list[str]:
    path = Policies(plan.home).path("sql", version) / "rollouts.parquet"
    return list(pl.read_parquet(path)["rollout"])


def read_steps(plan: Plan, version: int) -> int:
    """Return the optimizer steps of a version's checkpoint since the base model."""
    found = Policies(plan.home).find_checkpoint("sql", version)
    assert found is not None and found[0] == 0
    return int(json.loads((found[1] / "learner.json").read_text())["steps"])


@pytest.mark.nightly
def test_a_watch_after_a_run_trains_only_on_new_rollouts_and_continues_the_optimizer(
    plan: Plan, tmp_path: Path
) -> None:
    scene = Scene()
    first = add_group(scene, (0, 0, 0, 0))
    with open_empty_store(tmp_path / "store") as store:
        insert_otlp(store, scene.request())
        run = train(plan, store)
        assert (run.version, dict(run.update.left_out.reasons)) == (1, {})
        assert read_ledger(plan, 1) == sorted(first)
        assert read_steps(plan, 1) == 1
        checkpoint = Policies(plan.home).read_version("sql", 1).checkpoint
        assert checkpoint == f"runs/{plan.name}-once@sql/checkpoints/1"  # no other policy's

        with pytest.raises(NothingToTrain, match=r"4 of 4 rollouts .* before \(v1 on 4\)\. Run"):
            train(plan, store)
        assert Policies(plan.home).versions("sql") == [0, 1]

        second = add_group(scene, (1, 1, 1, 1), task="t2")
        insert_otlp(store, scene.request())
    runs: list[OfflineRun] = []
    with (
        run_lock(plan.home, run=plan.name, policy=plan.policy) as lock,
        open_updaters([plan], {"sql": 1}, lock) as updaters,
    ):
        watcher = Watcher(
            plan,
            f"chdb://{tmp_path}/store",
            on_input=lambda data: None,
            on_update=lambda plan, data, run: runs.append(run),
            on_look=lambda policy, look: None,
            examine=lambda plan, version: (True, ""),
            progress=Progress(enabled=False),
            updaters=updaters,
            versions={"sql": 1},
        )
        assert watcher.look(NOON + 5 * HOUR)
        third = add_group(scene, (2, 2, 2, 2), task="t3", attempt=9)
        with Store.open(f"chdb://{tmp_path}/store") as store:
            insert_otlp(store, scene.request())
        assert watcher.look(NOON + 12 * HOUR)
    assert [(run.version, dict(run.update.left_out.reasons)) for run in runs] == [
        (2, {"consumed": 4}),
        (3, {"consumed": 8}),
    ]
    for version, rollouts in ((2, second), (3, third)):
        assert read_ledger(plan, version) == sorted(rollouts)
        assert Policies(plan.home).read_version("sql", version).parent == version - 1
        assert read_steps(plan, version) == version, "the optimizer goes on"
