"""The reward as an HTTP service: it gets a task and a result, and returns their value.

The request is `POST URL` with the JSON object `{"task": {…}, "result": …}`, with `services` if the
agent used some, and with `Authorization: Bearer …` if `LTRAIN_REWARD_KEY` is set. The response is a
JSON number, or an object of numbers.
"""

import json
import time
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from ltrain_instrument.privacy import remove_url_credentials
from ltrain_instrument.settings import REWARD_KEY
from ltrain_train.rollout.rewards.endpoint import EndpointAway, JsonEndpoint
from ltrain_train.rollout.rewards.limits import RewardLimits
from ltrain_train.rollout.rewards.source import NO_SERVICES, RewardFailed, parse_values
from ltrain_train.rollout.tasks import Task

SCHEMES = ("http://", "https://")


class RewardService:
    """Sends each result to a URL."""

    def __init__(self, url: str, timeout: float, limits: RewardLimits) -> None:
        self._timeout, self._name = timeout, remove_url_credentials(url)
        self._endpoint = JsonEndpoint(url, REWARD_KEY.read(), limits)
        self.digest = sha256(self._name.encode()).hexdigest()[:16]
        """Hash of the URL."""

    def score(
        self, task: Task, result: Any, services: Mapping[str, str] = NO_SERVICES
    ) -> dict[str, float]:
        """Return the reward values by name."""
        fields: dict[str, Any] = {"task": task.model_dump(mode="json"), "result": result}
        if services:
            fields["services"] = dict(services)
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
