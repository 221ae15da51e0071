"""The HTTP connection to a gateway, and its errors."""

from collections.abc import Callable
from http import HTTPStatus
from typing import Any

import httpx
from opentelemetry.propagate import inject

from ltrain_instrument.errors import LtrainError


class GatewayUnreachable(LtrainError, ConnectionError):
    """No gateway answers at its address."""


class GatewayGivenUp(GatewayUnreachable):
    """No gateway answers, and none will: the run that started it has given it up."""


class GatewayRefused(LtrainError, RuntimeError):
    """The gateway refused a request; the message is the gateway's."""


class PolicyServerAway(GatewayRefused):
    """The gateway answers, but its policy server is down: the same request may succeed later."""


class GatewayConnection:
    """Sends JSON requests to one gateway; safe to use from several threads."""

    def __init__(self, url: str, given_up: Callable[[], str] = lambda: "") -> None:
        self.url = url.rstrip("/")
        self._given_up = given_up
        self.http = httpx.Client(base_url=self.url, timeout=30.0, trust_env=False)

    def close(self) -> None:
        """Close the connections."""
        self.http.close()

    def request(
        self,
        method: str,
        path: str,
        key: str,
        body: dict[str, Any] | None = None,
        timeout: float = 30.0,
    ) -> dict[str, Any]:
        """Send a request and return the JSON object of the answer.

        Raises:
            GatewayUnreachable: when no gateway answers.
            PolicyServerAway: when its policy server is down.
            GatewayRefused: when it refuses the request.
        """
        headers = {"authorization": f"Bearer {key}"}
        inject(headers)
        try:
            response = self.http.request(method, path, json=body, headers=headers, timeout=timeout)
        except httpx.HTTPError as error:
            self.check_given_up()
            raise GatewayUnreachable(
                f"No gateway answers at {self.url}: {error}. Start it with `ltrain serve MODEL`, "
                "or set LTRAIN_GATEWAY to its address."
            ) from error
        if response.status_code == HTTPStatus.SERVICE_UNAVAILABLE:
            raise PolicyServerAway(_error_message(response))
        if response.status_code != HTTPStatus.OK:
            raise GatewayRefused(_error_message(response))
        content: dict[str, Any] = response.json()
        return content

    def check_given_up(self) -> None:
        """Raise `GatewayGivenUp` if no gateway will answer again."""
        if reason := self._given_up():
            raise GatewayGivenUp(reason)


def _error_message(response: httpx.Response) -> str:
    try:
        return str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"The gateway answered {response.status_code}: {response.text[:500]}"
