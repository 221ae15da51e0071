"""The extraction example: generated messages, reward, recipe, and the traced agent."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.examples.example_module import load_module
from tests.frameworks.expected import describe_calls

from ltrain_train.rollout import load_tasks
from ltrain_transforms.recipe import Recipe

if TYPE_CHECKING:
    from tests.frameworks.conftest import Run

FOLDER = Path(__file__).parents[2] / "examples" / "extract"
ORDER = {
    "customer": {"name": "Ada", "city": "Bath"},
    "item": {"product": "lamp", "count": 2},
    "delivery": "express",
}

load = partial(load_module, FOLDER)
tasks, reward = load("tasks"), load("reward")


def test_the_task_files_are_those_of_the_generator(tmp_path: Path) -> None:
    for name, made in zip(("train", "val"), tasks.orders(), strict=True):
        tasks.write(tmp_path / name, made)
        assert (tmp_path / name).read_text() == (FOLDER / f"{name}.jsonl").read_text()
        read = [task.model_dump() for task in load_tasks(FOLDER / f"{name}.jsonl")]
        assert [task["order"] for task in read] == [task["order"] for task in made]


def values(made: list[dict[str, Any]]) -> set[str]:
    """Return the names, cities and numbers of tasks."""
    customers = (value for task in made for value in task["order"]["customer"].values())
    numbers = (number for task in made for number in re.findall(r"\d+", task["input"]))
    return {*customers, *numbers}


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_no_value_of_a_held_out_message_is_in_another(seed: int) -> None:
    train, val = tasks.orders(seed)
    assert values(train) & values(val) == set()
    assert {task["input"] for task in train} & {task["input"] for task in val} == set()


def test_each_message_has_the_values_of_its_order() -> None:
    for made in tasks.orders():
        for task in made:
            order = task["order"]
            values_of_order = (*order["customer"].values(), str(order["item"]["count"]))
            assert all(value in task["input"] for value in values_of_order)
            product, delivery = order["item"]["product"], order["delivery"]
            assert tasks.PRODUCTS[product] in task["input"]
            assert any(each in task["input"] for each in tasks.DELIVERIES[delivery])


@pytest.mark.parametrize(
    ("found", "share"),
    [
        (ORDER, 1.0),
        ({**ORDER, "customer": {"name": " ADA ", "city": "bath"}}, 1.0),
        ({**ORDER, "item": {"product": "lamp", "count": 3}}, 0.8),
        ({**ORDER, "customer": {}, "delivery": "pickup"}, 0.4),
        ({"customer": None, "item": [2], "delivery": None}, 0.0),
    ],
)
def test_the_reward_is_the_share_of_right_fields(found: dict[str, Any], share: float) -> None:
    scores = {"reward": pytest.approx(share), "exact": float(share == 1)}
    assert reward.score({"order": ORDER}, found) == scores


def test_the_recipe_selects_the_agent_and_leaves_structured_output_at_its_default() -> None:
    recipe = Recipe.load(FOLDER / "ltrain.toml")
    assert recipe.policy[0].agents == ("extractor",)
    assert recipe.train.constrained == "masked"
    assert recipe.rollout is not None and recipe.rollout.allow == ()


def test_a_run_is_recorded_with_its_schema(run: Run) -> None:
    message = f"Ada from Bath needs two lamps by tomorrow. [[{json.dumps(ORDER)}]]"
    result = run("examples", str(FOLDER / "agent"), message)
    assert (result.exit_code, result.stderr) == (0, "")
    assert json.loads(result.stdout) == ORDER
    assert describe_calls(result) == [f"extractor ok stop 7+5: {json.dumps(ORDER)}"]
    [request] = result.model_requests
    assert request.body["response_format"]["type"] == "json_schema"
    assert request.body["temperature"] == 0


@pytest.mark.nightly
def test_an_order_with_a_value_that_the_schema_does_not_have_fails(run: Run) -> None:
    wrong = json.dumps({**ORDER, "delivery": "mail"})
    result = run("examples", str(FOLDER / "agent"), f"Ada needs lamps. [[{wrong}; {wrong}]]")
    assert result.exit_code == 1
    assert "UnexpectedModelBehavior" in result.stderr
