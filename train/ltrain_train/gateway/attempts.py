"""The attempts that call through the gateway: what each has done, and whether its key still works.

* Counts live as long as the gateway: after a restart they begin at zero, and so does the list of
  closed attempts.
* What an outage did to an attempt is known here alone: an agent's word for it does not count.
"""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus

from opentelemetry.context import Context

from ltrain_instrument.identity import Identity
from ltrain_train.gateway.keys import RolloutClaims
from ltrain_train.gateway.refusal import Refused

REMEMBERED = 20_000
"""Attempts after which expired ones are forgotten."""


@dataclass(slots=True, eq=False)
class Attempt:
    identity: Identity
    expires: float = float("inf")
    closed: bool = False
    llm_calls: int = 0
    """Calls that were answered."""
    spans: int = 0
    """Call spans that have ended, failed calls included."""
    unanswered: set[bytes] = field(default_factory=set)
    """Digests of requests that an outage left unanswered; one that is asked again leaves it."""
    away_seconds: float = 0.0
    """Seconds in which a call waited for a policy server that was away."""
    cut_by_outage: bool = False
    """Whether the policy server was away when its calls in flight were cut."""
    context: Context | None = None
    """Of its first call: the trace that its own span belongs to."""
    flying: set[asyncio.Task[None]] = field(default_factory=set)
    _waiting: int = 0
    _waiting_since: float = 0.0

    @property
    def counts(self) -> dict[str, float]:
        return {
            "llm_calls": self.llm_calls,
            "spans": self.spans,
            "failures": len(self.unanswered),
            "away_seconds": self.away_seconds,
        }

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the time inside as an outage; calls that wait side by side count once."""
        if not self._waiting:
            self._waiting_since = time.monotonic()
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1
            if not self._waiting:
                self.away_seconds += time.monotonic() - self._waiting_since

    async def close(self) -> None:
        """Refuse further calls and cut those in flight; their spans have ended on return."""
        self.closed = True
        flying = list(self.flying)
        for call in flying:
            call.cancel()
        await asyncio.gather(*flying, return_exceptions=True)


class Attempts:
    """Every attempt that a key was shown for."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], Attempt] = {}

    def of(self, claims: RolloutClaims) -> Attempt:
        """Return the attempt that a key is for."""
        identity = claims.identity
        key = (identity.rollout or "", identity.attempt or 0)
        attempt = self._known.get(key)
        if attempt is None:
            if len(self._known) >= REMEMBERED:
                self._forget_expired()
            attempt = self._known[key] = Attempt(identity, claims.expires)
        return attempt

    def open(self, claims: RolloutClaims) -> Attempt:
        """Return the attempt that a key is for.

        Raises:
            Refused: when it has been closed.
        """
        attempt = self.of(claims)
        if attempt.closed:
            raise Refused(
                HTTPStatus.FORBIDDEN,
                f"Attempt {attempt.identity.attempt} of rollout {attempt.identity.rollout} is "
                "closed, so its key no longer works. The runner has finished or repeated it.",
            )
        return attempt

    def _forget_expired(self) -> None:
        now = time.time()
        self._known = {key: each for key, each in self._known.items() if each.expires > now}
