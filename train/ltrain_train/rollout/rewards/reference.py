"""The reward that a reference names: a URL, a function, or a command."""

import json
import time
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from ltrain_instrument.privacy import remove_url_credentials
from ltrain_instrument.settings import REWARD_KEY
from ltrain_train.rollout.rewards.command import RewardCommand
from ltrain_train.rollout.rewards.endpoint import EndpointAway, JsonEndpoint
from ltrain_train.rollout.rewards.function import RewardFunction
from ltrain_train.rollout.rewards.limits import LimitedReward, RewardLimits
from ltrain_train.rollout.rewards.source import (
    NO_SERVICES,
    REWARD_TIMEOUT,
    RewardFailed,
    RewardSource,
    parse_values,
)
from ltrain_train.rollout.tasks import Task
from ltrain_train.sandboxes import Changes
from ltrain_train.workers import is_reference


def open_reward(
    reference: str,
    folder: Path,
    timeout: float = REWARD_TIMEOUT,
    limits: RewardLimits | None = None,
) -> RewardSource:
    """Return what `reference` names: a URL, `module:function`, or else a command.

    Args:
        folder: folder of the module or the command.
        timeout: seconds for all calls on one result.
        limits: how many results are judged at a time, and how many calls start in a second.
    """
    limits = limits or RewardLimits()
    return LimitedReward(_open_source(reference, folder, timeout, limits), limits)


def _open_source(
    reference: str, folder: Path, timeout: float, limits: RewardLimits
) -> RewardSource:
    if reference.startswith(SCHEMES):
        return RewardService(reference, timeout, limits)
    if is_reference(reference):
        return RewardFunction(reference, folder, timeout, limits)
    return RewardCommand(reference, folder, timeout, limits)


SCHEMES = ("http://", "https://")


class RewardService:
    """Sends each task with its result to a URL, and returns their value.

    The request is `POST URL` with the JSON object `{"task": {…}, "result": …}`, with `services` if
    the agent used some, with `diff` if it had a workspace, and with `Authorization: Bearer …` if
    `LTRAIN_REWARD_KEY` is set. The response is a JSON number, or an object of numbers.
    """

    def __init__(self, url: str, timeout: float, limits: RewardLimits) -> None:
        self._timeout, self._name = timeout, remove_url_credentials(url)
        self._endpoint = JsonEndpoint(url, REWARD_KEY.read(), limits)
        self.digest = sha256(self._name.encode()).hexdigest()[:16]
        """Hash of the URL."""

    def score(
        self,
        task: Task,
        result: Any,
        services: Mapping[str, str] = NO_SERVICES,
        changes: Changes | None = None,
    ) -> dict[str, float]:
        """Return the reward values by name."""
        fields: dict[str, Any] = {"task": task.model_dump(mode="json"), "result": result}
        if services:
            fields["services"] = dict(services)
        if changes is not None:
            fields["diff"] = changes.diff
        until = time.monotonic() + self._timeout
        try:
            return parse_values(self._endpoint.post(json.dumps(fields).encode(), until))
        except EndpointAway as error:
            raise RewardFailed(
                f"{self._name} has not judged task '{task.id}' within {self._timeout:g} s: {error}."
                " Start the service, or raise reward_timeout under [rollout] in the recipe "
                "(--reward-timeout)."
            ) from error
        except (TypeError, ValueError) as error:
            raise RewardFailed(
                f"{self._name} failed on task '{task.id}': {error}. It must return a JSON number, "
                "or an object of numbers, with status 200."
            ) from error

    def close(self) -> None:
        """Close the connections."""
        self._endpoint.close()
