"""The reward function: `score(task, result) -> float | dict[str, float]`, or a coroutine function.

It is asked three times; then the result is the agent's failure, and the recipe says what that
counts. Where it fails on most results, it is the function's failure, and the run ends.
"""

import asyncio
import inspect
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ltrain_instrument.errors import LtrainError
from ltrain_train.rollout.reference import code_digest, load_function
from ltrain_train.rollout.tasks import Task

PAUSES = (0.2, 0.4)
"""Seconds before the second and the third try."""


class RewardFailed(LtrainError, RuntimeError):
    """A reward function that raises, or gives what is no number."""


class Judge:
    """Asks the reward function that `reference` names."""

    def __init__(self, reference: str, folder: Path) -> None:
        self.reference = reference
        self._score = load_function(reference, folder)
        self.digest = code_digest(self._score)
        """Hash of the module it is in."""

    def rewards(self, task: Task, result: Any) -> dict[str, float]:
        """Give the values by name; a single value is called `reward`.

        Raises:
            RewardFailed: when three tries gave no value.
        """
        for pause in PAUSES:
            try:
                return self._ask(task, result)
            except (
                Exception,
                SystemExit,
            ):  # the user's code may raise anything; the last try tells it
                time.sleep(pause)
        try:
            return self._ask(task, result)
        except (Exception, SystemExit) as error:  # as above
            raise RewardFailed(
                f"{self.reference} failed on task '{task.id}': {type(error).__name__}: {error}. "
                "It must give a number, or numbers by name, for every result of the agent."
            ) from error

    def _ask(self, task: Task, result: Any) -> dict[str, float]:
        given = self._score(task.model_dump(mode="json"), result)
        if inspect.isawaitable(given):
            given = asyncio.run(_awaited(given))
        named = given if isinstance(given, Mapping) else {"reward": given}
        return {str(name): _number(value) for name, value in named.items()}


async def _awaited(given: Any) -> Any:
    return await given


def _number(value: Any) -> float:
    number = float(value)  # bool, int, numpy's scalars
    if isinstance(value, str) or not math.isfinite(number):
        raise ValueError(f"{value!r} is no number that a reward can be")
    return number
