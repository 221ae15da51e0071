"""How many attempts run at a time: fewer while the model server answers too late.

The rule is additive increase, multiplicative decrease (Chiu and Jain, 1989), as in TCP: an attempt
that the server made late halves the limit, and attempts that end in time raise it again.
"""

import logging
from collections.abc import Collection

from ltrain_train.rollout.attempts import ClosedAttempt

STEPS = 4
"""Increases from no attempt to the most."""

_logger = logging.getLogger("ltrain.rollouts")


class Concurrency:
    """The limit of the attempts in flight, from one to as many as the agent's processes run."""

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
