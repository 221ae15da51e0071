"""`ltrain sft` with a real learner: the loss falls, and the version is one to continue from."""

import json
from pathlib import Path

import polars as pl
import pytest
from tests.train.finetune.chats import add_chats, options, write_recipe, write_store
from tests.transforms.conftest import Scene

from ltrain_train.errors import NothingToTrain
from ltrain_train.finetune import command
from ltrain_train.policy import Policies
from ltrain_transforms.datasets import Dataset


def test_a_warm_start_lowers_the_loss_and_publishes_a_version(
    home: Path, tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scene = Scene()
    talks = add_chats(scene)
    store, recipe = write_store(tmp_path, scene), write_recipe(tmp_path)
    keys = {"min": 1.0, "epochs": 4, "holdout": 0.4, "rows_per_step": 2}
    plan = command.plan_offline(recipe, "sft", keys, model=tiny, mode=None)
    command.run_offline(plan, "sft", options(store))
    printed = json.loads(capsys.readouterr().out)

    before, *epochs = printed["epochs"]
    assert before["loss"] is None and len(epochs) == 4
    losses = [each["held_out"] for each in (before, *epochs)]
    assert losses == sorted(losses, reverse=True) and losses[-1] < losses[0] - 0.5
    assert epochs[-1]["loss"] < epochs[0]["loss"] < losses[0] + 0.5

    policies = Policies(home)
    version = policies.read_version("helper", 1)
    assert (printed["version"], policies.current("helper"), version.parent) == (1, 1, 0)
    assert version.dataset == printed["dataset"] == Dataset.open(Path(printed["folder"])).id
    assert version.recipe == plan.recipe.digest
    assert version.checkpoint == "runs/demo-sft@helper/checkpoints/1"
    policies.verify("helper", 1)
    ledger = pl.read_parquet(policies.path("helper", 1) / "rollouts.parquet")["rollout"]
    good = {talk.attempt.rollout for talk in talks[::2]}
    assert len(ledger) == printed["rows"] and set(ledger) < good

    spooled = b"".join(path.read_bytes() for path in home.rglob("*") if path.is_file()
                       and "spool" in path.parts)  # fmt: skip
    assert spooled.count(b"ltrain.train.step") >= 4 * printed["steps"]

    with pytest.raises(NothingToTrain, match=r"was trained on them before \(v1 on"):
        command.run_offline(plan, "sft", options(store))
    assert policies.versions("helper") == [0, 1]
