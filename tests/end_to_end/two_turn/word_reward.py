"""Half the reward for a first word the tool takes, half for a second word of the named set."""

import random
from typing import Any

from word_agent import FIRST, SECOND

seen: list[float] = []


def score(task: dict[str, Any], result: dict[str, Any]) -> dict[str, float]:
    """Give what the second word earned; what the first did is a rule's to give."""
    return {"reward": second(result), "true": first(result) + second(result)}


def shuffled(task: dict[str, Any], result: dict[str, Any]) -> dict[str, float]:
    """Give the whole reward of some other rollout: the same values, nothing to learn from."""
    true = first(result) + second(result)
    others = seen[-96:] or [true]
    seen.append(true)
    return {"reward": random.choice(others), "true": true}


def first(result: dict[str, Any]) -> float:
    return 0.5 * (result["first"] in FIRST)


def second(result: dict[str, Any]) -> float:
    return 0.5 * (result["named"] >= 0 and result["second"] in SECOND[result["named"]])
