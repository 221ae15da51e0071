"""The runner's view of the gateway: whether it is ready, and how long calls waited for it.

* No attempt starts while the gateway holds calls, because its policy server is away or is loading
  a version.
* The time limit of an attempt counts the seconds that the agent could work. The gateway
  reports by attempt how long its calls waited; the limit is extended by that.
"""

import logging
import time
from collections.abc import Iterable

from ltrain_train.gateway import OUTAGE_TIMEOUT, GatewayClient, GatewayRefused, GatewayUnreachable
from ltrain_train.workers import Attempt

POLL = 0.2
"""Seconds between two requests of one kind to the gateway."""
LIMITS_POLL = 0.1
"""Seconds between two checks of the time limits: each looks at every attempt."""

_logger = logging.getLogger("ltrain.rollouts")


class GatewayWatch:
    """Asks the gateway at most every `POLL` seconds; used by one thread."""

    def __init__(self, client: GatewayClient, policy: str) -> None:
        self._client, self._policy = client, policy
        self._ready = False
        self._ready_checked = self._waits_read = self._limits_checked = float("-inf")
        self._away_since: float | None = None
        self._waited: dict[str, float] = {}

    def is_ready(self) -> bool:
        """Return whether an attempt may start; print once for each outage that none may."""
        now = time.monotonic()
        if now < self._ready_checked + POLL:
            return self._ready
        self._ready_checked = now
        self._ready = self._client.is_ready()
        if self._ready:
            self._away_since = None
        elif self._away_since is None:
            self._away_since = now
            _logger.warning("ltrain: waiting for the gateway, at most %.0f s", OUTAGE_TIMEOUT)
        elif now > self._away_since + OUTAGE_TIMEOUT:
            raise GatewayUnreachable(
                f"The gateway at {self._client.url} has not been ready for {OUTAGE_TIMEOUT:g} s. "
                "Start it with `ltrain serve MODEL`, or set LTRAIN_GATEWAY to its address."
            )
        return self._ready

    def overdue(self, attempts: Iterable[Attempt]) -> set[str]:
        """Return the execution ids of the attempts that exceeded their time limit."""
        now = time.monotonic()
        if now < self._limits_checked + LIMITS_POLL:
            return set()
        self._limits_checked = now
        late = [attempt for attempt in attempts if self._is_late(attempt)]
        if not late or now < self._waits_read + POLL:
            return set()
        self._read_waits()
        return {attempt.id for attempt in late if self._is_late(attempt)}

    def waited(self, attempt: str) -> float:
        """Return the seconds by which the time limit of an attempt has been extended."""
        return min(self._waited.get(attempt, 0.0), OUTAGE_TIMEOUT)

    def _is_late(self, attempt: Attempt) -> bool:
        limit = attempt.timeout + self.waited(attempt.id)
        return time.time_ns() > attempt.started + limit * 1e9

    def _read_waits(self) -> None:
        try:
            self._waited = self._client.waits(self._policy)
        except (GatewayUnreachable, GatewayRefused) as error:
            # its answer when the attempt is closed decides whether an outage was the cause
            _logger.debug("ltrain: the gateway does not report waits: %s", error)
        self._waits_read = time.monotonic()
