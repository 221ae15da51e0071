"""The attempts that call through the gateway: what each has done, and whether its key still works.

Counts live as long as the gateway: after a restart they begin at zero, and so does the list of
closed attempts.
"""

import asyncio
import time
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
    failures: int = 0
    """Calls that failed for another reason than the agent's: the policy server's."""
    context: Context | None = None
    """Of its first call: the trace that its own span belongs to."""
    flying: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def counts(self) -> dict[str, int]:
        return {"llm_calls": self.llm_calls, "spans": self.spans, "failures": self.failures}

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
        """Give the attempt that a key is for."""
        identity = claims.identity
        key = (identity.rollout or "", identity.attempt or 0)
        attempt = self._known.get(key)
        if attempt is None:
            if len(self._known) >= REMEMBERED:
                self._forget_expired()
            attempt = self._known[key] = Attempt(identity, claims.expires)
        return attempt

    def open(self, claims: RolloutClaims) -> Attempt:
        """Give the attempt that a key is for.

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
