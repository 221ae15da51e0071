"""The gateway as the runner and the loop see it."""

from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import httpx
from opentelemetry.propagate import inject

from ltrain_instrument.errors import LtrainError
from ltrain_instrument.identity import Identity
from ltrain_train.gateway.keys import sign_admin

PUBLISH = 900.0
"""Seconds for a publication: the drain of calls in flight, and the load."""
AWAY = 1200.0
"""Seconds that a gateway or its policy server may be away: a large model takes minutes to load."""


class GatewayUnreachable(LtrainError, ConnectionError):
    """No gateway answers at its address."""


class GatewayRefused(LtrainError, RuntimeError):
    """The gateway said no; the sentence is its own."""


class PolicyServerAway(GatewayRefused):
    """The gateway answers, but its policy server is away: the same request may succeed later."""


@dataclass(frozen=True, slots=True)
class CallCounts:
    """What an attempt did at the gateway."""

    llm_calls: int
    """Calls that were answered."""
    spans: int
    """Call spans, failed calls included; the gateway's own span for the attempt is not counted."""
    failures: int
    """Requests that an outage of the policy server, or of the disk, left unanswered."""
    away_seconds: float = 0.0
    """Seconds in which a call waited for a policy server that was away."""
    since: float = 0.0
    """Unix seconds at which the gateway began to count."""


class GatewayClient:
    """Talks to one gateway; may be shared by threads."""

    def __init__(self, url: str, secret: str) -> None:
        self.url = url.rstrip("/")
        self._secret = secret
        self._http = httpx.Client(base_url=self.url, timeout=30.0, trust_env=False)

    def close(self) -> None:
        self._http.close()

    def health(self) -> bool:
        """Return whether the gateway answers."""
        return self._health() is not None

    def ready(self) -> bool:
        """Return whether calls are answered at once: the policy server has its weights."""
        health = self._health()
        return health is not None and health.get("status") == "ready"

    def _health(self) -> dict[str, Any] | None:
        try:
            answer = self._http.get("/health", timeout=2.0)
            found = answer.json() if answer.status_code == HTTPStatus.OK else None
        except (httpx.HTTPError, ValueError):
            return None
        return found if isinstance(found, dict) else None

    def current(self, policy: str) -> int:
        """Return the version that is served.

        Raises:
            GatewayRefused: when the gateway serves another policy.
        """
        return int(
            self._ask("GET", f"/admin/policies/{policy}", sign_admin(self._secret))["current"]
        )

    def publish(self, policy: str, version: int) -> float:
        """Serve a version from now on; return the seconds that calls had to wait.

        Raises:
            GatewayUnreachable, PolicyServerAway: when it should be published again later.
            GatewayRefused: when there is no such version, or it cannot be loaded.
        """
        path, key = f"/admin/policies/{policy}/current", sign_admin(self._secret)
        return float(self._ask("POST", path, key, {"version": version}, PUBLISH)["seconds"])

    def close_rollout(self, identity: Identity, key: str) -> CallCounts:
        """Revoke an attempt's key, cut its calls, and count them."""
        path = f"/rollout/{identity.rollout}/attempt/{identity.attempt}/close"
        return CallCounts(**self._ask("POST", path, key))

    def _ask(
        self,
        method: str,
        path: str,
        key: str,
        body: dict[str, Any] | None = None,
        timeout: float = 30.0,
    ) -> dict[str, Any]:
        headers = {"authorization": f"Bearer {key}"}
        inject(headers)
        try:
            answer = self._http.request(method, path, json=body, headers=headers, timeout=timeout)
        except httpx.HTTPError as error:
            raise GatewayUnreachable(
                f"No gateway answers at {self.url}: {error}. Start it with `ltrain serve MODEL`, "
                "or set LTRAIN_GATEWAY to its address."
            ) from error
        if answer.status_code == HTTPStatus.SERVICE_UNAVAILABLE:
            raise PolicyServerAway(_sentence(answer))
        if answer.status_code != HTTPStatus.OK:
            raise GatewayRefused(_sentence(answer))
        said: dict[str, Any] = answer.json()
        return said


def _sentence(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"The gateway answered {answer.status_code}: {answer.text[:500]}"
