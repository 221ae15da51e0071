"""The sampling that a wave of rollouts imposes on the agent's calls."""

from typing import Any

from ltrain_instrument.identity import Mode
from ltrain_transforms.recipe import Recipe

TRAIN_SAMPLING = {"temperature": 1.0}
"""Sampling in mode `train` unless the recipe sets it: the policy's own distribution."""


def imposed_sampling(recipe: Recipe, mode: Mode) -> dict[str, Any]:
    """Return `sampling` and `policy_sampling` of `Runner.dispatch`: only training imposes some.

    A policy that the recipe does not name has the sampling of the first trained one.
    """
    if mode != "train":
        return {"sampling": {}, "policy_sampling": {}}
    by_policy = {policy.name: TRAIN_SAMPLING | policy.sampling for policy in recipe.policy}
    return {"sampling": by_policy[recipe.trained[0].name], "policy_sampling": by_policy}
