"""The HTTP client of the gateway for the runner and the loop."""

import math
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import httpx
from pydantic import BaseModel, Field

from ltrain_collector.access import sign_admin
from ltrain_instrument.identity import Identity
from ltrain_train.gateway.connection import GatewayConnection, GatewayUnreachable
from ltrain_train.gateway.serving.publish_choice import PublishChoice

if TYPE_CHECKING:
    from ltrain_train.policy import SharedWeights
    from ltrain_transforms.deployment_file import Stage

PUBLISH_TIMEOUT = 900.0
"""Seconds for a publication: draining the calls in flight and loading the weights."""
HEALTH_TIMEOUT = 5.0
"""Seconds in which a gateway on a busy machine answers `/health`."""
OUTAGE_TIMEOUT = 1200.0
"""Maximum seconds of an outage of the gateway or its policy server; a large model takes minutes
to load."""


@dataclass(frozen=True, slots=True)
class CallCounts:
    """The counts of an attempt's calls at the gateway."""

    llm_calls: int
    """Answered calls."""
    spans: int
    """Call spans, failed calls included; the gateway's own span for the attempt is not counted."""
    failures: int
    """Requests that an outage of the policy server, or a full disk, left unanswered."""
    given_up: int = 0
    """Calls that the agent left without an answer, since the last answer."""
    tokens: int = 0
    """Tokens that the policy sampled in the answered calls."""
    call_seconds: float = 0.0
    """Seconds in which a call waited for its model; calls at the same time count once."""
    uptime: float = math.inf
    """Seconds for which the gateway, and with it the counts, had existed."""


class Health(BaseModel):
    """The answer of the gateway at `/health`; empty without a gateway."""

    status: str = ""
    """`ready`, or `waiting` while calls wait."""
    policies: dict[str, int | None] = Field(default_factory=dict)
    """The served version of each policy; the first policy is the default."""
    max_model_len: int | None = None


class GatewayClient:
    """Sends requests to one gateway; safe to use from several threads."""

    def __init__(self, url: str, secret: str) -> None:
        """Connect to the gateway at `url` when the first request is sent.

        Args:
            url: base URL.
            secret: the secret that gateway and runner share.
        """
        self._secret = secret
        self._connection = GatewayConnection(url)
        self.url = self._connection.url

    def close(self) -> None:
        """Close the connections."""
        self._connection.close()

    def is_running(self) -> bool:
        """Return whether the gateway answers."""
        return bool(self._health().status)

    def require_running(self) -> None:
        """Check that the gateway answers and accepts the keys of this client.

        Raises:
            GatewayUnreachable: when it does not answer, or another server does.
            GatewayRefused: when it is the gateway of another home.
        """
        health = self._health()
        for policy in tuple(health.policies)[:1]:
            self.call_seconds(policy)  # any route with a key
        if health.status:
            return
        try:
            self._connection.http.get("/health", timeout=HEALTH_TIMEOUT)
        except httpx.HTTPError as error:
            raise GatewayUnreachable(self._connection.describe_absence(str(error))) from error
        raise GatewayUnreachable(self._connection.describe_absence("another server does"))

    def served_policies(self, timeout: float = HEALTH_TIMEOUT) -> list[str]:
        """Return the names of the policies that the gateway serves; empty if none answers.

        Args:
            timeout: seconds that it may take to answer; one that is starting answers when it is
                ready.
        """
        return list(self._health(timeout).policies)

    def max_model_len(self) -> int | None:
        """Return the maximum tokens of prompt and response together; None if it is unknown."""
        return self._health().max_model_len

    def is_ready(self) -> bool:
        """Return whether the gateway answers calls at once: the policy server has its weights."""
        return self._health().status == "ready"

    def _health(self, timeout: float = HEALTH_TIMEOUT) -> Health:
        try:
            response = self._connection.http.get("/health", timeout=timeout)
            if response.status_code in (HTTPStatus.OK, HTTPStatus.SERVICE_UNAVAILABLE):
                return Health.model_validate_json(response.content)
        except (httpx.HTTPError, ValueError):
            pass
        return Health()

    def call_seconds(self, policy: str) -> dict[str, float]:
        """Return the seconds that the calls of each open attempt took, by execution id.

        Raises:
            GatewayUnreachable: when the gateway does not answer.
            GatewayRefused: when it serves another policy.
        """
        path, key = f"/admin/policies/{policy}/calls", sign_admin(self._secret)
        seconds: dict[str, float] = self._connection.request(
            "GET", path, key, timeout=HEALTH_TIMEOUT
        )["seconds"]
        return seconds

    def current_version(self, policy: str) -> int:
        """Return the served version of `policy`.

        Raises:
            GatewayRefused: when the gateway serves another policy.
        """
        return int(self._served(policy)["current"])

    def publish_choice(self, policy: str) -> PublishChoice:
        """Return whether a learner should publish adapters of `policy` or merged weights.

        Raises:
            GatewayRefused: when the gateway serves another policy.
        """
        served = self._served(policy)
        return PublishChoice(served["publish"], served["publish_reason"])

    def _served(self, policy: str) -> dict[str, Any]:
        path, key = f"/admin/policies/{policy}", sign_admin(self._secret)
        return self._connection.request("GET", path, key)

    def shares(self, policy: str) -> bool:
        """Return whether vLLM loads weights from the memory of a learner of its machine.

        Raises:
            GatewayRefused: when the gateway serves another policy.
        """
        return bool(self._served(policy).get("shares"))

    def offer(self, policy: str, shared: "SharedWeights") -> None:
        """Begin to load weights whose version is still being written; `load` then ends that.

        Raises:
            GatewayUnreachable, PolicyServerAway: when it does not answer.
            GatewayRefused: when vLLM refuses them.
        """
        path, key = f"/admin/policies/{policy}/offer", sign_admin(self._secret)
        body = shared.model_dump(mode="json")
        self._connection.request("POST", path, key, body)

    def load(
        self,
        policy: str,
        version: int,
        *,
        current: bool = True,
        shared: "SharedWeights | None" = None,
    ) -> float:
        """Load a version into the policy's server, and return the seconds that calls had to wait.

        Args:
            policy: the policy.
            version: its version.
            current: whether it becomes the current version on disk.
            shared: the memory of a learner that has its weights, too.

        Raises:
            GatewayUnreachable, PolicyServerAway: when the caller should load it again later.
            GatewayRefused: when the version does not exist or cannot be loaded.
        """
        path, key = f"/admin/policies/{policy}/current", sign_admin(self._secret)
        body: dict[str, Any] = {"version": version, **({} if current else {"current": False})}
        if shared is not None:
            body["weights"] = shared.model_dump(mode="json")
        return float(self._connection.request("POST", path, key, body, PUBLISH_TIMEOUT)["seconds"])

    def deploy(
        self, policy: str, version: int, stage: "Stage", *, share: float, by: str, reason: str
    ) -> None:
        """Move a version to a stage on its way to the users.

        Raises:
            GatewayUnreachable, PolicyServerAway: when the caller should try it again later.
            GatewayRefused: when no step leads there, or the version cannot be loaded.
        """
        path, key = f"/admin/policies/{policy}/stage", sign_admin(self._secret)
        body = {"version": version, "stage": stage, "share": share, "by": by, "reason": reason}
        self._connection.request("POST", path, key, body, PUBLISH_TIMEOUT)

    def freeze(self, policy: str, *, by: str, reason: str) -> None:
        """Let the current version answer all calls, and no other one become current.

        Raises:
            GatewayUnreachable: when the gateway does not answer.
            GatewayRefused: when it serves another policy.
        """
        path, key = f"/admin/policies/{policy}/freeze", sign_admin(self._secret)
        self._connection.request("POST", path, key, {"by": by, "reason": reason}, HEALTH_TIMEOUT)

    def sleep(self) -> None:
        """Let vLLM sleep when the calls in flight have ended; later calls wait for the next `load`.

        Raises:
            GatewayUnreachable, PolicyServerAway: when the caller should try it again later.
            GatewayRefused: when vLLM has no sleep mode.
        """
        self._switch("sleep")

    def wake(self) -> None:
        """Wake the weights of vLLM when no learner uses the GPU; calls wait for the next `load`.

        Raises:
            GatewayUnreachable, PolicyServerAway: when the caller should try it again later.
        """
        self._switch("wake")

    def _switch(self, state: str) -> None:
        key = sign_admin(self._secret)
        self._connection.request("POST", f"/admin/{state}", key, timeout=PUBLISH_TIMEOUT)

    def close_attempt(self, identity: Identity, key: str) -> CallCounts:
        """Revoke an attempt's key, cancel its calls in flight, and return its counts."""
        path = f"/rollout/{identity.rollout}/attempt/{identity.attempt}/close"
        return CallCounts(**self._connection.request("POST", path, key))
