"""The reward of a rollout: that of the example that the task's domain names."""

from collections.abc import Mapping
from typing import Any

from siblings import DOMAINS, load

REWARDS = {domain: load(domain, "reward").score for domain in DOMAINS}


def score(task: Mapping[str, Any], result: Mapping[str, Any]) -> dict[str, float]:
    """Return `reward` only: what else an example's reward returns exists in its domain alone."""
    return {"reward": REWARDS[task["domain"]](task, result)["reward"]}
