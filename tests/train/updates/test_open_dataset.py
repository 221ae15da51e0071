"""A dataset that was built before, and the recipe that trains on it."""

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.damage import Damage, cut_in_half, damage_file, flip_a_bit
from tests.otlp import insert_otlp, open_empty_store
from tests.train.policy.test_versions import write_model
from tests.transforms.conftest import RECIPE, Scene
from tests.transforms.datasets.test_lineage import add_group

from ltrain_train.errors import BadRun
from ltrain_train.policy import Policies
from ltrain_train.runs.plan import Plan
from ltrain_train.updates.stored_traces import build_dataset, open_dataset
from ltrain_transforms.datasets import Dataset
from ltrain_transforms.errors import DamagedDataset
from ltrain_transforms.recipe import Recipe


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    Policies(tmp_path).register("sql", write_model(tmp_path / "model"))
    return Plan(recipe=changed(), folder=tmp_path, home=tmp_path)


@pytest.fixture
def dataset(plan: Plan) -> Dataset:
    scene = Scene()
    add_group(scene, (0, 0, 0, 0))
    with open_empty_store(plan.home / "store") as store:
        insert_otlp(store, scene.request())
        return build_dataset(plan, store, "before")


def changed(**sections: Any) -> Recipe:
    return Recipe.model_validate(tomllib.loads(RECIPE) | sections)


@pytest.mark.parametrize(
    ("sections", "fault"),
    [
        ({"credit": {"outcome": {"estimator": "rloo"}}}, r"\[credit\] of the two differ"),
        (
            {"reward": [{"name": "answer", "evaluation": "other"}], "filter": {"max_tokens": 9}},
            r"\[reward\] and \[filter\] of the two differ",
        ),
    ],
)
def test_a_dataset_of_another_recipe_is_refused(
    plan: Plan, dataset: Dataset, sections: dict[str, Any], fault: str
) -> None:
    with pytest.raises(BadRun, match=fault):
        open_dataset(replace(plan, recipe=changed(**sections)), dataset.path)


@pytest.mark.parametrize("damage", [flip_a_bit, cut_in_half])
def test_a_damaged_dataset_is_not_trained_on(plan: Plan, dataset: Dataset, damage: Damage) -> None:
    damage_file(dataset.path / "samples" / "00000.parquet", damage)
    with pytest.raises(DamagedDataset, match=r"is damaged: samples/00000\.parquet has"):
        open_dataset(plan, dataset.path)


@pytest.mark.parametrize(
    "sections", [{}, {"train": {"learning_rate": 1e-4}}, {"source": {"run": "x", "mode": "prod"}}]
)
def test_a_recipe_may_train_otherwise(
    plan: Plan, dataset: Dataset, sections: dict[str, Any]
) -> None:
    assert open_dataset(replace(plan, recipe=changed(**sections)), dataset.path).id == dataset.id


def test_a_dataset_of_all_policies_is_that_of_one(plan: Plan, dataset: Dataset) -> None:
    two = [{"name": "sql", "agents": ["write"]}, {"name": "rewriter", "agents": ["rewrite"]}]
    several = replace(plan, recipe=changed(policy=two))
    for name in several.trained:
        assert open_dataset(several.for_policy(name), dataset.path).id == dataset.id
