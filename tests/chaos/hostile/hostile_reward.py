"""The reward of an honest answer; a guess has none."""

from typing import Any


def score(task: dict[str, Any], result: Any) -> float:
    if not isinstance(result, dict):
        return 0.0
    assert result["answers"] == [task["input"]] * 2
    return 0.5 + 0.5 * float(result["draw"])
