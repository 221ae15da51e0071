"""The reward as a function: `score(task, result) -> float | dict[str, float]`, or a coroutine one.

A parameter `services` gets the addresses of the services that the agent used. After an attempt in a
workspace, `workspace` gets the path of the folder as the attempt left it, and `diff` its changes as
text; otherwise both are None.

A call that fails is tried three times. Then the failure counts as an error of the agent, whose
value the recipe sets; so does a function that does not return in time. If the function fails on
most results, the run ends.
"""

import asyncio
import inspect
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_exponential

from ltrain_train.rollout.rewards import source
from ltrain_train.rollout.rewards.limits import RewardLimits
from ltrain_train.rollout.rewards.source import (
    MAX_CALLS,
    NO_SERVICES,
    REWARD_TIMEOUT,
    RewardFailed,
    parse_values,
)
from ltrain_train.rollout.tasks import Task
from ltrain_train.sandboxes import Changes
from ltrain_train.workers import code_digest, load_function

USER_ERRORS = (Exception, SystemExit)
"""The user's code may raise anything."""


class RewardFunction:
    """Calls the reward function that `reference` names."""

    def __init__(
        self,
        reference: str,
        folder: Path,
        timeout: float = REWARD_TIMEOUT,
        limits: RewardLimits | None = None,
    ) -> None:
        self.reference, self.timeout = reference, timeout
        self._limits = limits or RewardLimits()
        self._function = load_function(reference, folder)
        self._parameters = _parameter_names(self._function)
        self.digest = code_digest(self._function)
        """Hash of the function's module."""

    def score(
        self,
        task: Task,
        result: Any,
        services: Mapping[str, str] = NO_SERVICES,
        changes: Changes | None = None,
    ) -> dict[str, float]:
        """Return the reward values by name; a single value is named `reward`.

        A thread cannot be ended: that of a function that hangs is left behind.
        """
        scored: Future[dict[str, float]] = Future()
        known = {
            "services": dict(services),
            "workspace": str(changes.folder) if changes is not None else None,
            "diff": changes.diff if changes is not None else None,
        }
        more = {name: value for name, value in known.items() if name in self._parameters}

        def score() -> None:
            try:
                scored.set_result(self._score(task, result, more))
            except BaseException as error:
                scored.set_exception(error)

        threading.Thread(target=score, name="reward", daemon=True).start()
        try:
            return scored.result(self.timeout)
        except TimeoutError as error:
            if scored.done():  # it has returned since
                return scored.result()
            raise RewardFailed(
                f"{self.reference} has not returned after {self.timeout:g} s on task '{task.id}'. "
                "Give its requests a timeout, or raise reward_timeout under [rollout] in the "
                "recipe (--reward-timeout)."
            ) from error

    def _score(self, task: Task, result: Any, more: Mapping[str, Any]) -> dict[str, float]:
        retrying = Retrying(
            retry=retry_if_exception_type(USER_ERRORS),
            wait=wait_exponential(source.RETRY_PAUSE),
            stop=stop_after_attempt(MAX_CALLS),
            before=self._limits.before_retry,
            reraise=True,
        )
        try:
            return retrying(self._call, task, result, more)
        except USER_ERRORS as error:
            raise RewardFailed(
                f"{self.reference} failed on task '{task.id}': {type(error).__name__}: {error}. "
                "It must return a number, or a dict of numbers, for every result of the agent."
            ) from error

    def _call(self, task: Task, result: Any, more: Mapping[str, Any]) -> dict[str, float]:
        value = self._function(task.model_dump(mode="json"), result, **more)
        if inspect.isawaitable(value):
            value = asyncio.run(_await(value))
        return parse_values(value)

    def close(self) -> None:
        """Do nothing: ltrain cannot know what a function of the user has started."""


def _parameter_names(function: Callable[..., Any]) -> frozenset[str]:
    try:
        return frozenset(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # a built-in function without a signature
        return frozenset()


async def _await(value: Any) -> Any:
    return await value
