"""`ltrain dpo` with the real TRL: the margin rises, and the version is one to continue from."""

import json
from pathlib import Path

import polars as pl
import pytest
from tests.otlp import open_empty_store
from tests.train.finetune.chats import RECIPE, add_chats, options, write_recipe, write_store
from tests.transforms.conftest import Scene
from tests.transforms.exports.conftest import Talking, message
from tests.transforms.exports.test_imported_pairs import RECIPE as IMPORTED
from tests.transforms.exports.test_imported_pairs import score, trace

from ltrain_collector.transfer.importing import import_files
from ltrain_train.errors import BadRun, NothingToTrain
from ltrain_train.finetune import command
from ltrain_train.policy import Policies, read_adapter_config


@pytest.mark.nightly
def test_the_margin_rises_and_the_adapter_becomes_a_version(
    home: Path, tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scene = Scene()
    talks = add_chats(scene)
    store = write_store(tmp_path, scene)
    recipe = write_recipe(tmp_path, RECIPE + 'serve = { publish = "adapter" }\n')
    keys = {"epochs": 3, "holdout": 0.4, "pairs_per_step": 2, "learning_rate": 5e-3}
    plan = command.plan_offline(recipe, "dpo", keys, model=tiny, mode=None)
    command.run_offline(plan, "dpo", options(store))
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
        command.run_offline(plan, "dpo", options(store))


def test_every_execution_is_in_a_pair_or_left_out(
    home: Path, tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scene = Scene()
    add_chats(scene, tasks=2)
    for sample in range(2):  # equal outcomes
        Talking(scene.attempt("same", sample)).hears(message("user", "w1")).answers("w2")
        scene.attempts[-1].evaluate(1.0)
        scene.attempts[-1].close()
    for sample, answer in enumerate(("w3", " ".join(["w4"] * 40))):
        talk = Talking(scene.attempt("long", sample)).hears(message("user", "w1"))
        talk.answers(answer)
        talk.ends(float(sample))
    store = write_store(tmp_path, scene)
    recipe = write_recipe(tmp_path, RECIPE + "serve = { max_model_len = 32 }\n")
    plan = command.plan_offline(recipe, "dpo", {}, model=tiny, mode=None)
    command.run_offline(plan, "dpo", options(store, dry_run=True))
    printed = json.loads(capsys.readouterr().out)
    assert printed["executions"] == {
        "all": 8, "trained": 4, "held_out": 0, "left_out": {"no_difference": 2, "too_long": 2},
    }  # fmt: skip
    assert (printed["pairs"], Policies(home).versions("helper")) == (2, [])


def test_imported_traces_without_tasks_are_pairs(
    home: Path, tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records = [
        *trace("a", "w1", ["w2"]),
        *trace("b", "w1", ["w3"]),
        *trace("c", "w4", ["w5", "w6"]),  # a call and its retry
        *trace("d", "w7", ["w8"]),
        *(score(name, value) for name, value in (("a", 1.0), ("b", 0.0), ("c", 1.0), ("d", 1.0))),
        *(score("c", float(number), f"c-{number}") for number in range(2)),
    ]
    file = tmp_path / "export.jsonl"
    file.write_text("".join(f"{json.dumps(each)}\n" for each in records))
    with open_empty_store(tmp_path / "store") as store:
        import_files(store, [file], lambda _: None)
    recipe = write_recipe(tmp_path, IMPORTED)
    plan = command.plan_offline(recipe, "dpo", {}, model=tiny, mode=None)
    command.run_offline(plan, "dpo", options(f"chdb://{tmp_path / 'store'}", dry_run=True))
    printed = json.loads(capsys.readouterr().out)
    assert printed["executions"] == {
        "all": 4, "trained": 3, "held_out": 0, "left_out": {"alone": 1},
    }  # fmt: skip
    assert printed["pairs"] == 2


def test_a_missing_trl_is_reported_before_the_store_is_read(
    home: Path, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LTRAIN_TRL", str(tmp_path))
    plan = command.plan_offline(write_recipe(tmp_path, RECIPE), "dpo", {}, model=tiny, mode=None)
    with pytest.raises(BadRun, match=r"no TRL in .*`make setup-trl`.*--target DIR trl==1\.16\.0"):
        command.run_offline(plan, "dpo", options("http://127.0.0.1:9"))
