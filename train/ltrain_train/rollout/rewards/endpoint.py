"""A URL that answers JSON with JSON: a reward service, or the model of a judge.

While it does not answer, or answers with status 408, 429 or 500 and above, the request is sent
again until the deadline; `Retry-After` is kept. An answer is plain and has at most
`MAX_RESPONSE_BYTES`; the rest of a longer one is not read, and no redirect is followed.
"""

import time
from typing import Any

import httpx
from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_before_delay
from tenacity.wait import wait_base, wait_random_exponential

from ltrain_instrument.delivery import seconds_of_retry_after
from ltrain_train.rollout.rewards.limits import RewardLimits
from ltrain_train.workers import parse_json

MAX_PAUSE = 5.0
"""Seconds between two requests, unless the server names more."""
MAX_RESPONSE_BYTES = 1 << 20
HEADERS = {"content-type": "application/json", "accept-encoding": "identity"}
"""Headers of all requests: a compressed answer could fill the memory."""


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
            headers=HEADERS | ({"authorization": f"Bearer {key}"} if key else {}),
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
        request = self._client.stream("POST", self._url, content=body, timeout=seconds)
        try:
            with request as response:
                content = _read(response, until)
        except httpx.HTTPError as error:
            raise EndpointAway(f"{type(error).__name__}: {error}") from error
        text = content[:200].decode(errors="replace")
        if response.status_code != httpx.codes.OK:
            raise ValueError(f"status {response.status_code}: {text}")
        try:
            return parse_json(content.decode())
        except ValueError as error:
            raise ValueError(f"{text!r} is not JSON") from error


def _read(response: httpx.Response, until: float) -> bytes:
    """Return the body of an answer.

    Raises:
        EndpointAway: the server may answer later, or sends the body until after the deadline.
        ValueError: the body is too long, or compressed although no request allows that.
    """
    if response.status_code in (408, 429) or response.is_server_error:
        wait = seconds_of_retry_after(response.headers.get("retry-after"))
        raise EndpointAway(f"status {response.status_code}", wait)
    encoding = response.headers.get("content-encoding", "identity")
    if encoding != "identity":
        raise ValueError(f"the answer has the encoding '{encoding[:40]}', which was not requested")
    body = bytearray()
    for chunk in response.iter_raw():
        body += chunk
        if len(body) > MAX_RESPONSE_BYTES:
            raise ValueError(f"the answer has more than {MAX_RESPONSE_BYTES >> 20} MiB")
        if time.monotonic() > until:
            raise EndpointAway("the answer has not ended")
    return bytes(body)


class _Pause(wait_base):
    """Waits as long as the server wants, else longer each time."""

    _growing = wait_random_exponential(0.1, max=MAX_PAUSE)

    def __call__(self, state: RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome is not None else None
        pause = error.pause if isinstance(error, EndpointAway) else 0.0
        return max(pause, self._growing(state))
