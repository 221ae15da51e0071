"""The section [prompt]: its critic, and what a recipe needs beside it."""

import tomllib
from typing import Any

import pytest

from ltrain_transforms.errors import BadRecipe
from ltrain_transforms.recipe import Recipe

RECIPE = """
[rollout]
tasks = "train.jsonl"
validation = "val.jsonl"
agent = "agent:solve"
reward = "reward:score"
[[policy]]
name = "sql"
[[reward]]
name = "answer"
evaluation = "reward"
[[serve.route]]
model = "strong"
url = "https://models.example/v1"
key = "STRONG_KEY"
served_as = "strong-1"
[prompt]
policy = "greeting"
[prompt.critic]
model = "strong"
"""


def sections(**changes: Any) -> dict[str, Any]:
    return tomllib.loads(RECIPE) | changes


def test_the_critic_is_at_its_route_and_its_key_is_hidden_from_agents() -> None:
    recipe = Recipe.from_sections(sections())
    assert (recipe.critic_model.url, recipe.critic_model.model) == (
        "https://models.example/v1",
        "strong-1",
    )
    assert recipe.secrets == ("STRONG_KEY",)
    own = {"model": "m", "url": "http://127.0.0.1:1/v1", "key": "OWN"}
    other = Recipe.from_sections(sections(prompt={"policy": "greeting", "critic": own}))
    assert (other.critic_model.url, other.secrets) == (own["url"], ("STRONG_KEY", "OWN"))
    assert other.digest != recipe.digest


def test_a_recipe_without_a_prompt_has_no_critic() -> None:
    recipe = Recipe.from_sections({k: v for k, v in sections().items() if k != "prompt"})
    with pytest.raises(BadRecipe, match=r"no \[prompt\] section"):
        _ = recipe.critic_model


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"prompt": {"policy": "greeting"}}, "'greeting' and has no critic. Add"),
        ({"prompt": {"policy": "greeting", "critic": {}}}, "prompt.critic.model"),
        (
            {"prompt": {"policy": "greeting", "critic": {"model": "absent"}}},
            "has the model 'absent', which has no server",
        ),
        (
            {"prompt": {"policy": "greeting", "critic": {"model": "m", "url": "file:///x"}}},
            "prompt.critic.url",
        ),
        ({"prompt": {"policy": "sql", "critic": {"model": "strong"}}}, "is also a [[policy]]"),
        ({"prompt": {"policy": "", "critic": {"model": "strong"}}}, "prompt.policy"),
        (
            {"prompt": {"policy": "g", "critic": {"model": "strong"}, "beam_width": 0}},
            "prompt.beam_width",
        ),
        ({"rollout": {**tomllib.loads(RECIPE)["rollout"], "validation": None}}, "`validation`"),
        (
            {"reward": [{"name": "fault", "on": "tool", "value": "-1"}]},
            "no [[reward]] has an evaluation",
        ),
    ],
)
def test_a_prompt_that_cannot_be_optimized_is_refused(changes: Any, fault: str) -> None:
    with pytest.raises(BadRecipe) as error:
        Recipe.from_sections(sections(**changes))
    assert fault in str(error.value)
