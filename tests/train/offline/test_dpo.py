"""`ltrain dpo` with the real TRL: the margin rises, and the version is one to continue from."""

import json
from pathlib import Path

import polars as pl
import pytest
from tests.train.offline.chats import RECIPE, add_chats, options, write_recipe, write_store
from tests.transforms.conftest import Scene

from ltrain_train.errors import NothingToTrain
from ltrain_train.offline import command
from ltrain_train.policy import Policies, read_adapter_config


def test_the_margin_rises_and_the_adapter_becomes_a_version(
    home: Path, tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scene = Scene()
    talks = add_chats(scene)
    store = write_store(tmp_path, scene)
    recipe = write_recipe(tmp_path, RECIPE + 'serve = { publish = "adapter" }\n')
    keys = {"epochs": 3, "holdout": 0.4, "pairs_per_step": 2, "learning_rate": 5e-3}
    plan = command.make_plan(recipe, "dpo", keys, model=tiny, mode=None)
    command.run_offline(plan, "dpo", store, None, **options())
    printed = json.loads(capsys.readouterr().out)

    held_out = printed["held_out_pairs"]
    assert printed["executions"] == {
        "all": 16, "trained": 2 * (8 - held_out), "held_out": 2 * held_out, "left_out": {},
    }  # fmt: skip
    assert (printed["pairs"], 0 < held_out < 8) == (8 - held_out, True)
    before, *epochs = printed["epochs"]
    assert before["margin"] == 0 and before["held_out"] == pytest.approx(0.6931, abs=1e-3)
    margins = [each["margin"] for each in (before, *epochs)]
    assert margins == sorted(margins) and margins[-1] > 0.01
    assert epochs[-1]["held_out"] < before["held_out"]

    policies = Policies(home)
    version = policies.read_version("helper", 1)
    assert (printed["version"], policies.current("helper")) == (1, 1)
    assert (version.artifact, version.parent, version.base) == ("adapter", 0, 0)
    assert (version.dataset, version.recipe) == (printed["dataset"], plan.recipe.digest)
    assert version.checkpoint is None
    assert read_adapter_config(policies.verify("helper", 1)).r == 4
    ledger = pl.read_parquet(policies.path("helper", 1) / "rollouts.parquet")["rollout"]
    assert len(ledger) == 2 * printed["pairs"]
    assert set(ledger) < {talk.attempt.rollout for talk in talks}
    with pytest.raises(NothingToTrain, match=r"was trained on them before \(v1 on"):
        command.run_offline(plan, "dpo", store, None, **options())
