"""A URL that answers JSON with JSON: a reward service, or the model of a judge.

While it does not answer, or answers with status 408, 429 or 500 and above, the request is sent
again until the deadline; `Retry-After` is kept.
"""

import time
from typing import Any

import httpx
from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_before_delay
from tenacity.wait import wait_base, wait_random_exponential

from ltrain_train.rollout.rewards.limits import RewardLimits
from ltrain_train.workers import parse_json

MAX_PAUSE = 5.0
"""Seconds between two requests, unless the server names more."""
MAX_RESPONSE_BYTES = 1 << 20


class EndpointAway(OSError):
    """The server did not answer, or says that it may answer later."""

    def __init__(self, reason: str, pause: float = 0.0) -> None:
        super().__init__(reason)
        self.pause = pause
        """Seconds that the server wants to be left alone."""


class JsonEndpoint:
    """Posts JSON to one URL, with a key if there is one."""

    def __init__(self, url: str, key: str, limits: RewardLimits) -> None:
        self._url, self._limits = url, limits
        self._client = httpx.Client(
            headers={"content-type": "application/json"}
            | ({"authorization": f"Bearer {key}"} if key else {}),
            limits=httpx.Limits(max_connections=limits.concurrency),
        )

    def post(self, body: bytes, until: float) -> Any:
        """Return the parsed answer; the last request ends at `until` (monotonic seconds)."""
        retrying = Retrying(
            retry=retry_if_exception_type(EndpointAway),
            wait=_Pause(),
            stop=stop_before_delay(until - time.monotonic()),
            before=self._limits.before_retry,
            reraise=True,
        )
        return retrying(self._send, body, until)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _send(self, body: bytes, until: float) -> Any:
        seconds = max(0.1, until - time.monotonic())
        try:
            response = self._client.post(self._url, content=body, timeout=seconds)
        except httpx.HTTPError as error:
            raise EndpointAway(f"{type(error).__name__}: {error}") from error
        if response.status_code in (408, 429) or response.is_server_error:
            raise EndpointAway(f"status {response.status_code}", _retry_after(response))
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
    """Waits as long as the server wants, else longer each time."""

    _growing = wait_random_exponential(0.1, max=MAX_PAUSE)

    def __call__(self, state: RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome is not None else None
        pause = error.pause if isinstance(error, EndpointAway) else 0.0
        return max(pause, self._growing(state))


def _retry_after(response: httpx.Response) -> float:
    """Return the seconds of the header; 0 if it is absent or a date."""
    text = response.headers.get("retry-after", "")
    return float(text) if text.isdecimal() else 0.0
