"""`[deploy]` and `keep_days` of `[watch]`: what they need of other sections."""

import tomllib
from typing import Any

import pytest
from pydantic import ValidationError
from tests.transforms.conftest import RECIPE

from ltrain_transforms.recipe import Recipe

ADAPTERS = {"lora_rank": 8}


def parse(**sections: Any) -> Recipe:
    return Recipe.model_validate(tomllib.loads(RECIPE) | sections)


def test_a_share_and_gates_are_taken() -> None:
    gates = {"eval": 0.02, "safety": {"failed calls": 0.0}}
    rollout = {"tasks": "a.jsonl", "validation": "b.jsonl", "agent": "a:b", "reward": "c:d"}
    recipe = parse(deploy={"share": 0.1, "gates": gates}, train=ADAPTERS, rollout=rollout)
    assert recipe.deploy.gates.safety == {"failed calls": 0.0}
    assert parse(watch={"keep_days": 30}).watch.keep_days == 30


@pytest.mark.parametrize(
    ("sections", "sentence"),
    [
        ({"deploy": {"share": 1.0}, "train": ADAPTERS}, "less than 1"),
        ({"deploy": {"share": 0.1}, "train": {"lora_rank": 0}}, "needs versions that a server can"),
        ({"deploy": {"gates": {"eval": 0.1}}}, "eval of .deploy.gates. needs held-out tasks"),
        ({"deploy": {"gates": {"safety": {"a": 0}}}}, "safety of .deploy.gates. compares the roll"),
        ({"watch": {"keep_days": 0.5}}, "keep_days = 0.5 removes executions before they are train"),
        ({"watch": {"keep_days": 0}}, "greater than 0"),
    ],
)
def test_what_does_not_fit_is_an_error(sections: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValidationError, match=sentence):
        parse(**sections)
