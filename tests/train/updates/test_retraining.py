"""`ltrain policy verify --retrain`: an update is repeated, and the weights are compared."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from tests.otlp import insert_otlp, open_empty_store
from tests.train.policy.test_versions import write_model
from tests.train.updates.test_stored_traces import plan as plan  # a fixture
from tests.train.updates.test_stored_traces import train
from tests.train.updates.test_verification import home as home  # a fixture
from tests.train.updates.test_verification import verify
from tests.transforms.conftest import Scene
from tests.transforms.datasets.test_lineage import add_group

from ltrain_collector.store import Store
from ltrain_instrument.instrumentors import State
from ltrain_train.learner import largest_difference
from ltrain_train.policy import Policies
from ltrain_train.runs.plan import Plan
from ltrain_train.updates.retraining import compare_retraining
from ltrain_transforms.datasets import Dataset


@pytest.mark.parametrize(
    "version",
    [pytest.param(1, id="of-the-base", marks=pytest.mark.nightly), pytest.param(2, id="of-v1")],
)
def test_the_repeated_update_gives_the_same_weights(
    plan: Plan, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    monkeypatch.setenv("LTRAIN_HOME", str(plan.home))
    policies = Policies(plan.home)
    open_empty_store(plan.home / "store").close()
    for number in range(2):
        scene = Scene()
        add_group(scene, (number,) * 4, task=f"t{number}")
        with Store.open(f"chdb://{plan.home / 'store'}") as store:
            insert_otlp(store, scene.request())
            assert train(plan, store).version == number + 1
    found = verify(plan.home, f"sql@{version}", retrain=True)
    assert {each.state for each in found.values()} == {State.OK}, found
    assert found["retrained"].detail == f"v{version - 1} and the dataset give the same weights"
    assert policies.versions("sql") == [0, 1, 2]
    assert not [*plan.home.glob("spool/**/learner*"), *plan.home.rglob("datasets/**/*.part")]


@pytest.mark.parametrize(
    ("origin", "reason"),
    [
        ({"checkpoint": None}, "`ltrain run` did not make this version"),
        ({"checkpoint": "runs/demo-sft@sql/checkpoints/2"}, "`ltrain run` did not make this"),
        ({"recipe": "other"}, "it was trained by the recipe other, the dataset has"),
        ({}, "the checkpoint of v1 was removed"),
    ],
)
def test_what_cannot_be_repeated_is_noted(
    home: Path, tmp_path: Path, origin: dict[str, str | None], reason: str
) -> None:
    policies = Policies(home)
    first = policies.read_version("sql", 1)
    shutil.rmtree(home / str(first.checkpoint))
    checkpoint = origin.get("checkpoint", "runs/demo/checkpoints/sql/2")
    number = policies.register_files(
        "sql", write_model(tmp_path / "draft2"), parent=1, dataset=first.dataset, base=0,
        recipe=origin.get("recipe", first.recipe),
        checkpoint=None if checkpoint is None else home / checkpoint,
    )  # fmt: skip
    dataset = Dataset.open(home / "datasets" / "demo" / "train-0")
    found = compare_retraining(policies, policies.read_version("sql", number), dataset)
    assert found.state is State.NOTE
    assert found.detail.startswith(f"the update cannot be repeated: {reason}")


def test_the_largest_difference_is_that_of_all_tensors(tmp_path: Path) -> None:
    for name, last in (("a", 0.5), ("b", -0.25)):
        (tmp_path / name).mkdir()
        tensors = {"x": np.ones((2, 3), np.float32), "y": np.array([1.0, last], np.float32)}
        save_file(tensors, tmp_path / name / "model.safetensors")
    assert largest_difference(tmp_path / "a", tmp_path / "a") == 0.0
    assert largest_difference(tmp_path / "a", tmp_path / "b") == 0.75
