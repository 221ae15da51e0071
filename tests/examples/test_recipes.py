"""The recipes of an example that are compared differ in rules alone."""

from pathlib import Path
from typing import Any

import pytest

from ltrain_transforms.recipe import Recipe

EXAMPLES = Path(__file__).parents[2] / "examples"
VARIANTS = sorted(EXAMPLES.glob("*/rules_o*.toml"))


def _without_rules(recipe: Recipe) -> dict[str, Any]:
    fields = recipe.model_dump(exclude={"reward"})
    del fields["source"]["run"], fields["credit"]["process"]
    return fields


@pytest.mark.parametrize("path", VARIANTS, ids=lambda path: str(path.relative_to(EXAMPLES)))
def test_a_recipe_with_and_without_rules_differ_in_nothing_else(path: Path) -> None:
    default, variant = (Recipe.load(file) for file in (path.with_name("ltrain.toml"), path))
    assert default.source.run != variant.source.run
    assert _without_rules(variant) == _without_rules(default)
    off, on = sorted((default, variant), key=lambda recipe: len(recipe.reward))
    assert all(reward.evaluation for reward in off.reward)
    assert on.reward[: len(off.reward)] == off.reward
    assert not any(reward.evaluation for reward in on.reward[len(off.reward) :])
