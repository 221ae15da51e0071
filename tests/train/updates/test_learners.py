"""What the learners of a run continue from, and which policies share a process."""

import json
import logging
import tomllib
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.damage import Damage, cut_in_half, damage_file, flip_a_bit
from tests.train.policy.test_versions import write_model
from tests.transforms.conftest import RECIPE

from ltrain_train.errors import BadModel
from ltrain_train.learner.checkpoint import CheckpointRecord, fingerprint, write_record
from ltrain_train.policy import Policies
from ltrain_train.runs.plan import Plan
from ltrain_train.updates.learners import Learners, make_learner
from ltrain_transforms.recipe import Recipe

LOCK = cast(Any, SimpleNamespace(descriptors=()))


def plan(home: Path, **train: Any) -> Plan:
    recipe = Recipe.model_validate(tomllib.loads(RECIPE) | {"train": train})
    return Plan(recipe=recipe, folder=home, home=home)


@pytest.fixture
def policies(tmp_path: Path) -> Policies:
    """A policy with version 1, whose checkpoint rests on version 0."""
    policies = Policies(tmp_path)
    policies.register("sql", write_model(tmp_path / "model"))
    checkpoint = tmp_path / "runs" / "demo" / "checkpoints" / "1"
    checkpoint.mkdir(parents=True)
    record = CheckpointRecord(2, 1, fingerprint(policies.path("sql", 0)), 16, 32, 1, "r1")
    (checkpoint / "learner.json").write_text(json.dumps(asdict(record)))
    draft = write_model(tmp_path / "draft", fill=1)
    policies.register_files(
        "sql", draft, parent=0, dataset="d1", recipe="r1", base=0, checkpoint=checkpoint
    )
    return policies


def test_a_new_run_continues_from_unrounded_weights(policies: Policies, tmp_path: Path) -> None:
    manifest = policies.read_version("sql", 1)
    assert (manifest.base, manifest.checkpoint) == (0, "runs/demo/checkpoints/1")
    base, learner = make_learner(plan(tmp_path), policies, 1, LOCK)
    assert (base, learner.job.base) == (0, policies.path("sql", 0))
    assert learner.job.checkpoint == tmp_path / "runs" / "demo" / "checkpoints" / "1"
    base, learner = make_learner(plan(tmp_path), policies, 0, LOCK)
    assert (base, learner.job.checkpoint) == (0, None)


def test_without_a_checkpoint_that_fits_a_run_starts_from_rounded_weights_and_says_so(
    policies: Policies, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        base, learner = make_learner(plan(tmp_path, lora_rank=8), policies, 1, LOCK)
    assert (base, learner.job.base) == (1, policies.path("sql", 1))
    assert learner.job.checkpoint is None
    assert "has lora_rank 16, this run has 8" in caplog.text
    assert "Training starts from the rounded weights of v1, with a new optimizer." in caplog.text
    caplog.clear()
    (tmp_path / "runs" / "demo" / "checkpoints" / "1").rename(tmp_path / "elsewhere")
    with caplog.at_level(logging.WARNING):
        base, learner = make_learner(plan(tmp_path), policies, 1, LOCK)
    assert (base, learner.job.checkpoint) == (1, None)
    assert "v1 of 'sql' has no checkpoint." in caplog.text


@pytest.mark.parametrize("damage", [flip_a_bit, cut_in_half])
def test_a_damaged_checkpoint_is_named_and_the_weights_of_its_version_are_used(
    policies: Policies, tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: Damage
) -> None:
    checkpoint = tmp_path / "runs" / "demo" / "checkpoints" / "1"
    record = CheckpointRecord(2, 1, fingerprint(policies.path("sql", 0)), 16, 32, 1, "r1")
    (checkpoint / "optim.pt").write_bytes(b"0123456789")
    write_record(checkpoint, record)
    assert make_learner(plan(tmp_path), policies, 1, LOCK)[1].job.checkpoint == checkpoint
    (checkpoint / "optim.pt").write_bytes(damage(b"0123456789"))
    with caplog.at_level(logging.WARNING):
        base, learner = make_learner(plan(tmp_path), policies, 1, LOCK)
    assert (base, learner.job.base) == (1, policies.path("sql", 1))
    assert learner.job.checkpoint is None
    assert f"The checkpoint {checkpoint} is damaged: optim.pt has" in caplog.text
    assert "Training starts from the rounded weights of v1, with a new optimizer." in caplog.text
    weights = policies.path("sql", 1) / "model.safetensors"
    damage_file(weights, flip_a_bit)
    with pytest.raises(BadModel, match=r"v1' is damaged: model\.safetensors has the SHA-256"):
        make_learner(plan(tmp_path), policies, 1, LOCK)


def test_a_damaged_base_of_a_checkpoint_is_named(policies: Policies, tmp_path: Path) -> None:
    damage_file(policies.path("sql", 0) / "tokenizer.json", flip_a_bit)
    with pytest.raises(BadModel, match=r"v0' is damaged: tokenizer\.json has the SHA-256"):
        make_learner(plan(tmp_path), policies, 1, LOCK)


def processes(home: Path, models: Mapping[str, int], **train: Any) -> list[list[str]]:
    """Return the policies of each learner process of a run.

    Args:
        home: LTRAIN_HOME.
        models: the policies, each with a number that fills its weights.
        train: keys of [train]; a value of type dict has one for each policy.
    """
    policies, sections = Policies(home), list[dict[str, Any]]()
    for name, fill in models.items():
        policies.register(name, write_model(home / f"model-{name}", fill=fill))
        own = {key: value[name] for key, value in train.items() if isinstance(value, dict)}
        sections.append({"name": name, "train": own})
    shared = {key: value for key, value in train.items() if not isinstance(value, dict)}
    recipe = Recipe.model_validate(tomllib.loads(RECIPE) | {"policy": sections, "train": shared})
    whole = Plan(recipe=recipe, folder=home, home=home)
    plans = [whole.for_policy(name) for name in models]
    learners = Learners(plans, policies, dict.fromkeys(models, 0), LOCK)
    used = [learners.of(name).process for name in models]
    return [
        [name for name in models if learners.of(name).process is process]
        for process in {id(each): each for each in used}.values()
    ]


def test_adapters_of_equal_weights_share_a_process(tmp_path: Path) -> None:
    assert processes(tmp_path, {"a": 1, "b": 1, "c": 2}) == [["a", "b"], ["c"]]


@pytest.mark.parametrize(
    "train",
    [
        {"lora_rank": 0},
        {"lora_rank": {"a": 8, "b": 16}},
        {"kl_coefficient": 0.1, "reference": {"a": "a@0", "b": "base"}},
        {"tokens_per_micro_batch": {"a": 512, "b": 1024}},
    ],
)
def test_policies_that_are_trained_otherwise_have_their_own(
    tmp_path: Path, train: dict[str, Any]
) -> None:
    assert processes(tmp_path, {"a": 1, "b": 1}, **train) == [["a"], ["b"]]
    # an objective is named by each request
    assert processes(tmp_path / "2", {"a": 1, "b": 1}, loss={"a": "cispo", "b": "gpg"}) == [
        ["a", "b"]
    ]
