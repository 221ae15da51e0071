"""The reward as an HTTP service: it gets a task and a result, and returns their value.

The request is `POST URL` with the JSON object `{"task": {…}, "result": …}`, and with
`Authorization: Bearer …` if `LTRAIN_REWARD_KEY` is set. The response is a JSON number, or an object
of numbers. While the service does not answer, or answers with status 408, 429 or 500 and above, the
request is sent again until the timeout; `Retry-After` is kept.
"""

import json
import time
from hashlib import sha256
from typing import Any

import httpx
from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_before_delay
from tenacity.wait import wait_base, wait_random_exponential

from ltrain_instrument.privacy import remove_url_credentials
from ltrain_instrument.settings import REWARD_KEY
from ltrain_train.rollout.rewards.limits import RewardLimits
from ltrain_train.rollout.rewards.source import RewardFailed, parse_values
from ltrain_train.rollout.tasks import Task
from ltrain_train.workers import parse_json

MAX_PAUSE = 5.0
"""Seconds between two requests, unless the service names more."""
MAX_RESPONSE_BYTES = 1 << 20
SCHEMES = ("http://", "https://")


class ServiceAway(OSError):
    """The service did not answer, or says that it may answer later."""

    def __init__(self, reason: str, pause: float = 0.0) -> None:
        super().__init__(reason)
        self.pause = pause
        """Seconds that the service wants to be left alone."""


class RewardService:
    """Sends each result to a URL."""

    def __init__(self, url: str, timeout: float, limits: RewardLimits) -> None:
        self._url, self._timeout, self._limits = url, timeout, limits
        self._name = remove_url_credentials(url)
        key = REWARD_KEY.read()
        self._client = httpx.Client(
            headers={"content-type": "application/json"}
            | ({"authorization": f"Bearer {key}"} if key else {}),
            limits=httpx.Limits(max_connections=limits.concurrency),
        )
        self.digest = sha256(self._name.encode()).hexdigest()[:16]
        """Hash of the URL."""

    def score(self, task: Task, result: Any) -> dict[str, float]:
        """Return the reward values by name.

        Raises:
            RewardFailed: when the service refuses the request, returns something else than numbers,
                or has not answered after the timeout.
        """
        body = json.dumps({"task": task.model_dump(mode="json"), "result": result}).encode()
        until = time.monotonic() + self._timeout
        retrying = Retrying(
            retry=retry_if_exception_type(ServiceAway),
            wait=_Pause(),
            stop=stop_before_delay(self._timeout),
            before=self._limits.before_retry,
            reraise=True,
        )
        try:
            return parse_values(retrying(self._call, body, until))
        except ServiceAway as error:
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
        self._client.close()

    def _call(self, body: bytes, until: float) -> Any:
        seconds = max(0.1, until - time.monotonic())
        try:
            response = self._client.post(self._url, content=body, timeout=seconds)
        except httpx.HTTPError as error:
            raise ServiceAway(f"{type(error).__name__}: {error}") from error
        if response.status_code in (408, 429) or response.is_server_error:
            raise ServiceAway(f"status {response.status_code}", _retry_after(response))
        text = response.content[:200].decode(errors="replace")
        if response.status_code != httpx.codes.OK:
            raise ValueError(f"status {response.status_code}: {text}")
        if len(response.content) > MAX_RESPONSE_BYTES:
            raise ValueError(f"it returned {len(response.content)} bytes")
        try:
            return parse_json(response.text)
        except ValueError as error:
            raise ValueError(f"{text!r} is not JSON") from error


class _Pause(wait_base):
    """Waits as long as the service wants, else longer each time."""

    _growing = wait_random_exponential(0.1, max=MAX_PAUSE)

    def __call__(self, state: RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome is not None else None
        pause = error.pause if isinstance(error, ServiceAway) else 0.0
        return max(pause, self._growing(state))


def _retry_after(response: httpx.Response) -> float:
    """Return the seconds of the header; 0 if it is absent or a date."""
    text = response.headers.get("retry-after", "")
    return float(text) if text.isdecimal() else 0.0
