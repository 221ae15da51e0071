"""The attempts that call through the gateway: their call counts and whether their keys are open.

* Counts of open attempts live in memory; closed attempts and their counts survive a restart.
* Only these counts decide whether an outage affected an attempt; what an agent reports is ignored.
"""

import asyncio
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus

from opentelemetry.context import Context

from ltrain_collector.access import AttemptKey
from ltrain_instrument.clock import Deadline
from ltrain_instrument.identity import Identity
from ltrain_instrument.quantity import quantity
from ltrain_train.gateway.closed_attempts import ClosedAttempts, CloseRecord
from ltrain_train.gateway.errors import Refused
from ltrain_train.gateway.request_pool import RequestShare

FOREVER = Deadline.after(math.inf)
MAX_ATTEMPTS = 20_000
"""Number of attempts above which expired ones are dropped."""


@dataclass(slots=True, eq=False)
class AttemptCalls:
    """The calls of one attempt and the state of its key."""

    identity: Identity
    expires: Deadline = FOREVER
    """When its key expires."""
    closed: bool = False
    llm_calls: int = 0
    """Number of answered calls."""
    tokens: int = 0
    """Number of tokens that the policy sampled in them."""
    answer: dict[str, float] | None = None
    """The result of the close, once it is on disk."""
    spans: int = 0
    """Number of ended call spans, failed calls included."""
    unanswered: set[bytes] = field(default_factory=set)
    """Digests of requests that an outage left unanswered; a later answer removes its request."""
    given_up: int = 0
    """Number of calls that the agent left without an answer, since the last answer."""
    pinned: bool = False
    """Whether its calls are refused when their version is gone; else they go on with another."""
    versions: dict[str, int] = field(default_factory=dict)
    """The version of each policy that answered the first call of it."""
    replicas: dict[str, int] = field(default_factory=dict)
    """The replica that answered the last call of each policy, if its server has several."""
    context: Context | None = None
    """Trace context of the first call, which the attempt's own span continues."""
    tools_reported: bool = False
    """Whether the log has the tools that its requests lack."""
    requests: RequestShare = field(default_factory=RequestShare)
    in_flight_calls: set[asyncio.Task[None]] = field(default_factory=set)
    _calls_at_model: int = 0
    _changed: float = 0.0
    """Monotonic seconds at which `_calls_at_model` changed last."""
    _call_seconds: float = 0.0

    @property
    def call_seconds(self) -> float:
        """Seconds in which a call waited for its model, calls in flight included.

        A call waits at the shut gate, in the server's queue and while the server samples. Calls
        that wait at the same time count once.
        """
        since_change = time.monotonic() - self._changed if self._calls_at_model else 0.0
        return self._call_seconds + since_change

    @property
    def counts(self) -> dict[str, float]:
        """The counts that `close` returns to the runner."""
        return {
            "llm_calls": self.llm_calls,
            "tokens": self.tokens,
            "spans": self.spans,
            "failures": len(self.unanswered),
            "given_up": self.given_up,
            "call_seconds": self.call_seconds,
        }

    @contextmanager
    def count_call(self) -> Iterator[None]:
        """Add the time of the block to `call_seconds`."""
        self._count(1)
        try:
            yield
        finally:
            self._count(-1)

    @contextmanager
    def count_sending(self) -> Iterator[None]:
        """Leave the time of the block, in which the agent may be slow to read, to the agent."""
        self._count(-1)
        try:
            yield
        finally:
            self._count(1)

    def _count(self, step: int) -> None:
        self._call_seconds = self.call_seconds
        self._calls_at_model += step
        self._changed = time.monotonic()

    async def close(self) -> None:
        """Refuse further calls and cancel those in flight; all spans have ended on return."""
        self.closed = True
        in_flight_calls = list(self.in_flight_calls)
        for call in in_flight_calls:
            call.cancel()
        await asyncio.gather(*in_flight_calls, return_exceptions=True)


class AttemptRegistry:
    """The attempts whose keys have been used."""

    def __init__(self, file: ClosedAttempts | None = None) -> None:
        self._file = file
        self._attempts: dict[tuple[str, int], AttemptCalls] = {}
        for each in file.read() if file else ():
            identity = Identity(rollout=each.rollout, attempt=each.attempt)
            self._attempts[each.rollout, each.attempt] = AttemptCalls(
                identity, each.expires, closed=True, answer=each.counts
            )

    def find(self, claims: AttemptKey) -> AttemptCalls:
        """Return the attempt of a key, made on first use."""
        identity = claims.identity
        key = (identity.rollout or "", identity.attempt or 0)
        attempt = self._attempts.get(key)
        if attempt is None:
            if len(self._attempts) >= MAX_ATTEMPTS:
                self._drop_expired()
            attempt = AttemptCalls(identity, claims.expires, pinned=claims.pin_version)
            self._attempts[key] = attempt
        return attempt

    def require_open(self, claims: AttemptKey) -> AttemptCalls:
        """Return the attempt of a key.

        Raises:
            Refused: when the attempt has been closed, or has had all its calls or tokens.
        """
        attempt = self.find(claims)
        if attempt.closed:
            raise Refused(
                HTTPStatus.FORBIDDEN,
                f"Attempt {attempt.identity.attempt} of rollout {attempt.identity.rollout} is "
                "closed, so its key is revoked. The runner has finished the attempt or started "
                "another one.",
            )
        if claims.max_calls and attempt.llm_calls >= claims.max_calls:
            raise Refused(
                HTTPStatus.BAD_REQUEST,
                f"The attempt has had {quantity(attempt.llm_calls, 'answered call')}, the limit of "
                "rollout.max_calls. End the conversation earlier, or raise the limit.",
            )
        if claims.max_tokens and attempt.tokens >= claims.max_tokens:
            raise Refused(
                HTTPStatus.BAD_REQUEST,
                f"The policy has sampled {attempt.tokens} tokens for the attempt, and the limit is "
                f"{claims.max_tokens}: rollout.max_tokens. Ask for shorter answers, or raise the "
                "limit.",
            )
        return attempt

    async def record_close(self, attempt: AttemptCalls, uptime: float) -> dict[str, float]:
        """Return the counts of a closed attempt, which are on disk by then.

        Raises:
            Refused: when they cannot be written.
        """
        if attempt.answer is None:
            answer = {**attempt.counts, "uptime": uptime}
            identity = attempt.identity
            closed = CloseRecord(
                rollout=identity.rollout or "",
                attempt=identity.attempt or 0,
                expires=attempt.expires,
                counts=answer,
            )
            try:
                if self._file:
                    await asyncio.to_thread(self._file.append, closed)
            except OSError as error:
                raise Refused(
                    HTTPStatus.SERVICE_UNAVAILABLE,
                    f"The gateway cannot record that the attempt is closed: {error}. "
                    "Free disk space in LTRAIN_HOME, and close the attempt again.",
                ) from error
            attempt.answer = answer
        return attempt.answer

    def call_seconds(self) -> dict[str, float]:
        """Return the seconds that the calls of each open attempt took, by execution id."""
        return {
            f"{rollout}.{number}": attempt.call_seconds
            for (rollout, number), attempt in self._attempts.items()
            if not attempt.closed and attempt.call_seconds
        }

    def pinned(self) -> set[tuple[str, int]]:
        """Return the policies and versions to which open attempts are pinned."""
        attempts = (each for each in self._attempts.values() if each.pinned and not each.closed)
        return {key for each in attempts if each.expires.left > 0 for key in each.versions.items()}

    def _drop_expired(self) -> None:
        attempts = self._attempts.items()
        self._attempts = {key: each for key, each in attempts if each.expires.left > 0}
