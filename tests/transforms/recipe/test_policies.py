"""Several policies in a recipe: what each is trained by."""

from typing import Any

import pytest

from ltrain_transforms.errors import BadRecipe
from ltrain_transforms.recipe import Recipe

WRITER = {"name": "writer", "agents": ["writer"], "rewards": ["answer"]}
CRITIC = {"name": "critic", "agents": ["critic"], "train": {"loss": "cispo", "lora_rank": 8}}
REWARDS = [
    {"name": "answer", "evaluation": "reward"},
    {"name": "found", "evaluation": "found", "weight": -1.0},
]


def recipe(*policies: dict[str, Any], **more: Any) -> Recipe:
    return Recipe.from_sections({"policy": list(policies), "reward": REWARDS, **more})


def test_a_policy_has_its_rewards_and_its_keys_of_train() -> None:
    both = recipe(WRITER, CRITIC, train={"learning_rate": 1e-3})
    writer, critic = both.for_policy("writer"), both.for_policy("critic")
    assert [reward.name for reward in writer.reward] == ["answer"]
    assert [reward.name for reward in critic.reward] == ["answer", "found"]
    assert (writer.train.loss, writer.train.lora_rank) == ("vanilla", 16)
    assert (critic.train.loss, critic.train.lora_rank) == ("cispo", 8)
    assert writer.train.learning_rate == critic.train.learning_rate == 1e-3
    assert [policy.name for policy in writer.trained] == ["writer"]
    assert writer.for_policy("writer") is writer
    assert len({both.digest, writer.digest, critic.digest}) == 3


def test_a_single_policy_is_trained_by_the_recipe_itself() -> None:
    alone = recipe({"name": "sql"})
    assert alone.for_policy("sql") is alone
    beside_frozen = recipe({"name": "sql"}, {"name": "old", "frozen": True})
    assert beside_frozen.for_policy("sql") is beside_frozen


def test_a_budget_of_a_policy_is_not_in_the_digest() -> None:
    more = {"name": "sql", "train": {"keep_versions": 9}}
    assert recipe(more).digest == recipe({"name": "sql"}).digest
    assert recipe({"name": "sql", "train": {"loss": "cispo"}}).digest != recipe(more).digest


def test_a_dataset_is_of_one_policy_where_rewards_differ() -> None:
    both = recipe(WRITER, CRITIC)
    assert both.select_policy("critic") == both.for_policy("critic")
    with pytest.raises(BadRecipe, match=r"writer, critic have rewards .* Choose one with --policy"):
        both.select_policy(None)
    with pytest.raises(BadRecipe, match=r"Unknown trained policy 'writter'.*mean 'writer'"):
        both.select_policy("writter")
    equal = recipe({"name": "a", "agents": ["a"]}, {"name": "b", "agents": ["b"]})
    assert equal.select_policy(None) is equal


@pytest.mark.parametrize(
    ("policies", "message"),
    [
        ([WRITER, CRITIC | {"agents": ["writer"]}], "'writer' and 'critic' both have the agent"),
        ([WRITER | {"rewards": ["anser"]}], "Unknown reward 'anser'.*Did you mean 'answer'"),
        ([WRITER | {"frozen": True}], "Every .* is frozen"),
        ([WRITER | {"train": {"updates": 3}}], "`updates` is a key of the whole run"),
        ([WRITER | {"train": {"loss": "cispoo"}}], "For the policy 'writer': train.loss: Unknown"),
        ([WRITER | {"train": {"lose": 1}}], "For the policy 'writer': train.lose: Unknown key"),
    ],
)
def test_policies_that_contradict_each_other_are_refused(
    policies: list[dict[str, Any]], message: str
) -> None:
    with pytest.raises(BadRecipe, match=message):
        recipe(*policies)


def test_an_agent_may_be_shared_by_policies_that_select_other_calls_of_it() -> None:
    drafts, final = ({"where": f"node = '{node}'"} for node in ("draft", "final"))
    recipe(WRITER | drafts, CRITIC | final | {"agents": ["writer"]})
