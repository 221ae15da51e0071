"""The evaluations of a rollout: the sum of the steps' rewards, and from which answer it comes."""

from collections.abc import Mapping
from typing import Any


def score(task: Mapping[str, Any], result: Mapping[str, Any]) -> dict[str, float]:
    """Return `step`, the sum of the rewards that the environment recorded under this name.

    `first` and `corrected` are only for diagnosis: `step` where the first answer is right, and
    where a later one is. Their sum is `step`.
    """
    right = float(result["reward"])
    first = right if result["steps"] == 1 else 0.0
    return {"step": right, "first": first, "corrected": right - first}
