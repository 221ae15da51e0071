"""Half the reward for a first word that the tool accepts, half for a second word of its set."""

import random
from typing import Any

from word_agent import FIRST, SECOND

past_rewards: list[float] = []


def score(task: dict[str, Any], result: dict[str, Any]) -> dict[str, float]:
    """Return the reward of the second word; a rule gives the reward of the first."""
    return {"reward": second(result), "true": first(result) + second(result)}


def shuffled(task: dict[str, Any], result: dict[str, Any]) -> dict[str, float]:
    """Return the full reward of another rollout: the same values, with nothing to learn."""
    true = first(result) + second(result)
    others = past_rewards[-96:] or [true]
    past_rewards.append(true)
    return {"reward": random.choice(others), "true": true}


def first(result: dict[str, Any]) -> float:
    return 0.5 * (result["first"] in FIRST)


def second(result: dict[str, Any]) -> float:
    return 0.5 * (result["named"] >= 0 and result["second"] in SECOND[result["named"]])
