"""The limits of attempts: of their time, and of how many run at a time.

The gateway reports how long calls took.
"""

import logging
import time
from collections.abc import Collection, Iterable

from ltrain_train.gateway import OUTAGE_TIMEOUT, GatewayClient, GatewayRefused, GatewayUnreachable
from ltrain_train.rollout.attempts import ClosedAttempt
from ltrain_train.workers import Attempt, AttemptResult, Outcome

POLL = 0.1
"""Seconds between two checks of the time limits: each looks at every attempt."""
GATEWAY_POLL = 0.2
"""Seconds between two requests of one kind to the gateway."""
STEPS = 4
"""Increases from no attempt at a time to the most."""

_logger = logging.getLogger("ltrain.rollouts")


class TimeLimits:
    """The limits of attempts: of the agent's own seconds, and of all seconds.

    An agent's own seconds are those in which none of its calls waited for a model.
    """

    def __init__(self, wall: float) -> None:
        """Begin without attempts; `wall` is the limit of all seconds."""
        self._wall = wall
        self.call_seconds: dict[str, float] = {}
        """Seconds in which a call of an attempt waited for a model, by execution id."""
        self.overdue: dict[str, str] = {}
        """Attempts that exceeded a limit, with why that is not the agent's fault; '' if it is."""

    def is_late(self, attempt: Attempt) -> bool:
        """Return whether an attempt exceeds a limit, as far as its call seconds are known."""
        own_limit = attempt.timeout + self.call_seconds.get(attempt.id, 0.0)
        return attempt.elapsed > min(own_limit, self._wall)

    def end(self, attempt: Attempt, *, is_current: bool) -> None:
        """Mark a late attempt as overdue; its own limit counts if its call seconds are current."""
        if attempt.elapsed > self._wall:
            seconds = self.call_seconds.get(attempt.id, 0.0)
            self.overdue[attempt.id] = (
                f"it reached the wall limit of {self._wall:g} s; its calls took {seconds:.0f} s. "
                "The model server is too slow for it, or rollout.wall_timeout is too low"
            )
        elif is_current and self.is_late(attempt):
            self.overdue[attempt.id] = ""

    def excuse(self, attempt: Attempt, result: AttemptResult) -> AttemptResult:
        """Return the result of an attempt; the wall limit makes a timeout `infra`."""
        reason = self.overdue.get(attempt.id)
        if reason and result.outcome is Outcome.TIMEOUT:
            return AttemptResult(Outcome.INFRA, reason, late=True)
        return result


class GatewayWatch:
    """Asks the gateway whether it is ready, and how long calls took; used by one thread."""

    def __init__(self, client: GatewayClient, policy: str, limits: TimeLimits) -> None:
        self._client, self._policy, self._limits = client, policy, limits
        self._ready = False
        self._ready_checked = self._calls_read = self._limits_checked = float("-inf")
        self._away_since: float | None = None

    def is_ready(self) -> bool:
        """Return whether an attempt may start; print once for each outage that none may."""
        now = time.monotonic()
        if now < self._ready_checked + GATEWAY_POLL:
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
                "Start it with `ltrain serve MODEL`, or set LTRAIN_GATEWAY to its address; the "
                "same command continues."
            )
        return self._ready

    def expire(self) -> None:
        """Forget the last answer: an outage may have begun since."""
        self._ready_checked = float("-inf")

    def overdue(self, attempts: Iterable[Attempt]) -> set[str]:
        """Return the execution ids of the attempts that exceeded a limit."""
        now, limits = time.monotonic(), self._limits
        if now < self._limits_checked + POLL:
            return set()
        self._limits_checked = now
        in_flight = {attempt.id: attempt for attempt in attempts}
        late = [
            attempt
            for name, attempt in in_flight.items()
            if name not in limits.overdue and limits.is_late(attempt)
        ]
        if late and now > self._calls_read + GATEWAY_POLL:
            is_current = self._read_call_seconds()
            for attempt in late:
                limits.end(attempt, is_current=is_current)
        return in_flight.keys() & limits.overdue.keys()

    def _read_call_seconds(self) -> bool:
        """Read how long calls took; return False if the gateway does not answer."""
        self._calls_read = time.monotonic()
        try:
            self._limits.call_seconds = self._client.call_seconds(self._policy)
        except (GatewayUnreachable, GatewayRefused) as error:
            _logger.debug("ltrain: the gateway does not report the time of calls: %s", error)
            return False
        return True


class Concurrency:
    """How many attempts run at a time: fewer while the model server answers too late.

    The rule is additive increase, multiplicative decrease (Chiu and Jain, 1989), as in TCP: an
    attempt that the server made late halves the limit, and attempts that end in time raise it.
    """

    def __init__(self, most: int) -> None:
        """Begin with `most` attempts at a time; 0: there is never a limit."""
        self._most = self.limit = most
        self._in_time = 0
        """Attempts that ended in time since the last change."""
        self._reduced_for: set[str] = set()
        """Execution ids of the attempts that ran at the last decrease, which cause no other."""

    def is_reached(self, in_flight: int) -> bool:
        """Return whether no further attempt may start beside so many.

        The most needs no limit: the processes have no more places, and an attempt that is judged
        has left its place.
        """
        return self.limit < self._most and in_flight >= self.limit

    def add(self, closed: ClosedAttempt, in_flight: Collection[str]) -> None:
        """Change the limit after the end of an attempt, and print a change.

        Args:
            in_flight: execution ids of the attempts that ran at its end, its own included.
        """
        if not self._most:
            return
        if not closed.late:
            self._in_time += 1
            if self.limit < self._most and self._in_time >= self.limit:
                raised = min(self._most, self.limit + max(1, self._most // STEPS))
                self._set(raised, f"{self._in_time} ended in time")
        elif closed.running.attempt.id not in self._reduced_for:
            self._reduced_for = set(in_flight)
            halved = max(1, min(self.limit, len(in_flight)) // 2)
            self._set(halved, "the model server answered one too late")

    def _set(self, limit: int, reason: str) -> None:
        self._in_time = 0
        if limit != self.limit:
            _logger.warning("ltrain: at most %d rollouts at a time now: %s", limit, reason)
            self.limit = limit
