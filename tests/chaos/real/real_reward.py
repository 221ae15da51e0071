"""The reward of a real model's answers, which do not matter."""

from typing import Any


def score(task: dict[str, Any], result: dict[str, Any]) -> float:
    """Return 0.5 or 1.0; any other reward in the store would have another source."""
    assert len(result["answers"]) == 2 and all(result["answers"])
    return 0.5 + 0.5 * float(result["draw"])
