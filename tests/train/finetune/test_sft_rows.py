"""Which rows `ltrain sft` trains on, holds out and leaves out, and what it says without any."""

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.train.finetune.chats import RECIPE, add_chats, options, write_recipe, write_store
from tests.transforms.conftest import Scene

from ltrain_train.errors import BadRun, NothingToTrain
from ltrain_train.finetune import command
from ltrain_train.policy import Policies
from ltrain_transforms.file_digests import read_sealed, seal
from ltrain_transforms.policy_lineage import write_ledger


@pytest.fixture
def dry(home: Path, tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """Return a function that reports what there is to train on in the store of a scene."""
    stores: list[str] = []

    def report(scene: Scene, *, recipe: str = RECIPE, again: bool = False, **keys: Any) -> Any:
        if not stores:
            stores.append(write_store(tmp_path, scene))
        file = write_recipe(tmp_path, recipe)
        plan = command.plan_offline(file, "sft", keys, model=tiny, mode=None)
        capsys.readouterr()
        try:
            command.run_offline(plan, "sft", options(stores[0], dry_run=True, again=again))
        finally:
            report.printed = json.loads(capsys.readouterr().out or "{}")  # type: ignore[attr-defined]
        return report.printed  # type: ignore[attr-defined]

    return report


def test_every_execution_is_trained_held_out_or_left_out(dry: Any, home: Path) -> None:
    scene = Scene()
    add_chats(scene)
    printed = dry(scene, min=0.5, holdout=0.4)
    held_out = printed["held_out_rows"]
    assert printed["executions"] == {
        "all": 16, "trained": 8 - held_out, "held_out": held_out, "left_out": {"below": 8},
    }  # fmt: skip
    assert printed["calls"]["all"] == 8
    assert printed["outcomes"] == {"min": 1.0, "mean": 1.0, "max": 1.0, "highest": 1.0}
    assert (printed["rows"], printed["sampled_rows"]) == (8 - held_out, 0)
    assert 0 < held_out < 8
    rows = home / "runs" / "demo-sft@helper" / "rows"
    sides = [set(pl.read_parquet(rows / f"{name}.parquet")["group_id"]) for name in
             ("train", "held_out")]  # fmt: skip
    assert [len(side) for side in sides] == [8 - held_out, held_out]
    assert not sides[0] & sides[1]
    assert Policies(home).versions("helper") == []

    more = dry(scene, holdout=0.4, rows_per_step=4)
    assert more["held_out_rows"] == 2 * held_out, "a task is on the same side in every run"
    assert more["executions"]["left_out"] == {}
    assert more["steps"] == -(-more["rows"] // 4)


def test_the_best_of_each_group_are_kept(dry: Any) -> None:
    scene = Scene()
    add_chats(scene, tasks=3)
    printed = dry(scene, best=1)
    assert printed["executions"]["left_out"] == {"not_best": 3}
    assert printed["rows"] == 3


def test_a_threshold_that_no_rollout_reaches_names_one_that_some_do(dry: Any) -> None:
    scene = Scene()
    add_chats(scene, tasks=2)
    with pytest.raises(NothingToTrain, match=r"4 of 4 .* highest outcome is 1; `--min 1` keeps"):
        dry(scene, min=2.0)
    assert dry.printed["executions"]["left_out"] == {"below": 4}
    with pytest.raises(NothingToTrain, match="held out, of 4 executions: lower --holdout"):
        dry(scene, holdout=0.999999)


def test_rows_that_the_model_cannot_take_are_left_out(dry: Any) -> None:
    scene = Scene()
    add_chats(scene, tasks=2)
    recipe = RECIPE + "serve = { max_model_len = 4 }\n"
    with pytest.raises(NothingToTrain, match="4 of 4 executions are left out as `too_long`"):
        dry(scene, recipe=recipe)


def test_what_the_policy_was_trained_on_is_left_out(dry: Any, home: Path, tiny: Path) -> None:
    scene = Scene()
    talks = add_chats(scene, tasks=2)
    Policies(home).register("helper", tiny)
    ledger = home / "policies" / "helper" / "v0"
    write_ledger(ledger, [talks[0].attempt.rollout])
    printed = dry(scene, min=1)
    assert printed["executions"]["left_out"] == {"below": 2, "consumed": 1}
    assert printed["rows"] == 1
    write_ledger(ledger, [talk.attempt.rollout for talk in talks])
    with pytest.raises(NothingToTrain, match=r"before \(v0 on 2\)\. Run new rollouts, or add --ag"):
        dry(scene, min=1)
    assert dry(scene, min=1, again=True)["rows"] == 2


def test_a_recorded_call_keeps_its_tokens_and_fits_only_its_own_tokenizer(
    dry: Any, home: Path, tiny: Path
) -> None:
    scene = Scene()
    add_chats(scene, tasks=2)
    recorded = scene.attempt("t9")
    recorded.llm(gateway={"ltrain.policy.name": "helper"})
    recorded.evaluate(1.0)
    recorded.close()
    Policies(home).register("helper", tiny)
    printed = dry(scene, min=1)
    assert (printed["rows"], printed["sampled_rows"]) == (3, 1)

    manifest = Path(printed["folder"]) / "manifest.json"
    fields = read_sealed(manifest)
    fields["base"]["tokenizer"] = "0" * 64
    manifest.write_text(seal(fields))
    file = home.parent / "ltrain.toml"
    plan = command.plan_offline(file, "sft", {}, model=None, mode=None)
    with pytest.raises(BadRun, match="has tokens of another model: its tokenizer is 0000000000000"):
        command.run_offline(plan, "sft", options(None, manifest.parent, dry_run=True))


def test_a_policy_without_weights_is_refused(home: Path, tmp_path: Path) -> None:
    plan = command.plan_offline(write_recipe(tmp_path), "sft", {}, model=None, mode=None)
    with pytest.raises(BadRun, match=r"'helper' has no version to start from\. Add --model DIR"):
        command.run_offline(plan, "sft", options())
    (tmp_path / "prompt.txt").write_text("You help.")
    Policies(home).register("helper", tmp_path / "prompt.txt")
    with pytest.raises(BadRun, match="'helper' are prompts, which have no weights to train"):
        command.run_offline(plan, "sft", options())
