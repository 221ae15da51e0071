"""The limit on restarts of a service that keeps dying."""

import time
from collections import deque

MAX_DEATHS = 3
"""Deaths within `DEATH_WINDOW` after which a service is not started again."""
DEATH_WINDOW = 600.0
"""Seconds."""


class RestartLimit:
    """Counts the recent deaths of one service."""

    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=MAX_DEATHS)

    def record_death(self) -> bool:
        """Record a death now and return whether the limit is reached."""
        self._times.append(time.monotonic())
        return len(self._times) == MAX_DEATHS and self._times[-1] - self._times[0] < DEATH_WINDOW
