"""The mode of the executions that a recipe reads, and the default estimator that fits it."""

import tomllib
from pathlib import Path
from typing import Any

import pytest
from tests.transforms.conftest import RECIPE

from ltrain_transforms.errors import BadRecipe
from ltrain_transforms.recipe import Recipe


def recipe(mode: str = "", credit: str = "") -> Recipe:
    fields = tomllib.loads(RECIPE)
    fields["source"] |= {"mode": mode} if mode else {}
    return Recipe.model_validate(fields | {"credit": tomllib.loads(credit)})


@pytest.mark.parametrize(
    ("mode", "estimator"),
    [("", "grpo"), ("train", "grpo"), ("val", "grpo"), ("all", "grpo"), ("prod", "reinforce_pp")],
)
def test_production_traffic_has_an_estimator_for_groups_of_one(mode: str, estimator: str) -> None:
    for credit in ("", "[process]\nweight = 2.0", "[outcome]\npeers = 'agent'"):
        made = recipe(mode, credit)
        assert made.credit.outcome.estimator == estimator
        assert made.model_dump()["credit"]["outcome"]["estimator"] == estimator
        again = Recipe.model_validate(made.model_dump(by_alias=True))
        assert (again, again.digest) == (made, made.digest)
    assert recipe(mode, "[outcome]\nestimator = 'rloo'").credit.outcome.estimator == "rloo"


def test_another_mode_has_its_own_default_and_digest() -> None:
    train = recipe()
    prod = train.with_mode("prod")
    assert (prod.source.mode, prod.source.run) == ("prod", "demo")
    assert prod.credit.outcome.estimator == "reinforce_pp"
    assert prod.digest != train.digest and prod.digest == recipe("prod").digest
    assert prod.with_mode("train") == train
    named = recipe("prod", "[outcome]\nestimator = 'grpo'")
    assert named.with_mode("train").with_mode("prod").credit.outcome.estimator == "grpo"
    assert Recipe.model_validate(tomllib.loads(RECIPE)).credit.outcome.estimator == "grpo"


@pytest.mark.parametrize("fields", [{"source": {"mode": "test"}}, {"policy": {"modes": ["test"]}}])
def test_no_recipe_reads_the_mode_of_tests_by_name(fields: dict[str, dict[str, Any]]) -> None:
    made = tomllib.loads(RECIPE)
    made["source"] |= fields.get("source", {})
    made["policy"][0] |= fields.get("policy", {})
    with pytest.raises(BadRecipe, match=r"Unknown value 'test'\. Choose from: (all, )?prod"):
        Recipe.from_sections(made)


def test_an_unknown_mode_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ltrain.toml"
    path.write_text(RECIPE.replace('run = "demo"', 'run = "demo", mode = "production"'))
    with pytest.raises(BadRecipe, match=r"mode: Unknown value 'production'\. Choose from: all"):
        Recipe.load(path)
