"""Reward functions."""

import asyncio
import json
import time
import urllib.request
from typing import Any


def one(task: dict[str, Any], result: Any) -> bool:
    """Return one number."""
    return len(result["answer"]) > 0


def matches(task: dict[str, Any], result: Any) -> float:
    """Return 1 for the expected answer."""
    return float(result["answer"] == task["gold"])


def several(task: dict[str, Any], result: Any) -> dict[str, float]:
    """Return numbers by name."""
    return {"answer": 0.5, "style": 2}


def fails(task: dict[str, Any], result: Any) -> float:
    """Raise an error."""
    raise KeyError("gold")


def fails_on_some(task: dict[str, Any], result: Any) -> float:
    """Return a number for some tasks and raise for others."""
    if task["id"] == "b":
        raise KeyError("gold")
    return 1.0


def words(task: dict[str, Any], result: Any) -> int:
    """Return the number of words of a text."""
    return len(result.split())


def hangs(task: dict[str, Any], result: Any) -> float:
    """Return a number after a minute."""
    time.sleep(60)
    return 1.0


async def hangs_async(task: dict[str, Any], result: Any) -> float:
    """Return a number after a minute, from a coroutine."""
    await asyncio.sleep(60)
    return 1.0


def gives_up(task: dict[str, Any], result: Any) -> float:
    """Raise the error of a request that took too long."""
    raise TimeoutError("the judge does not answer")


def service_of_the_agent(task: dict[str, Any], result: Any, services: dict[str, str]) -> float:
    """Return 1 if the agent's service still answers."""
    with urllib.request.urlopen(services["db"]) as response:
        return float(json.load(response)["service"] == result["service"])


async def in_its_time(task: dict[str, Any], result: Any) -> float:
    """Return a number from a coroutine."""
    return 0.25


def unusable(task: dict[str, Any], result: Any) -> Any:
    """Return the task's value, which is not a number that counts."""
    return task["value"]
