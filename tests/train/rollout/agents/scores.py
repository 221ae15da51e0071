"""Reward functions."""

from typing import Any


def one(task: dict[str, Any], result: Any) -> bool:
    """One number."""
    return len(result["said"]) > 0


def several(task: dict[str, Any], result: Any) -> dict[str, float]:
    """Numbers by name."""
    return {"answer": 0.5, "style": 2}


def fails(task: dict[str, Any], result: Any) -> float:
    """No number at all."""
    raise KeyError("gold")


def fails_on_some(task: dict[str, Any], result: Any) -> float:
    """A number for some tasks."""
    if task["id"] == "b":
        raise KeyError("gold")
    return 1.0


def words(task: dict[str, Any], result: Any) -> int:
    """How many words a text has."""
    return len(result.split())


async def in_its_time(task: dict[str, Any], result: Any) -> float:
    """A coroutine's number."""
    return 0.25


def unusable(task: dict[str, Any], result: Any) -> Any:
    """What no advantage can be made from."""
    return task["value"]
