"""When a service that keeps dying is not started again."""

import time
from collections import deque

DEATHS = 3
"""Deaths within ten minutes after which a service is not started again."""
DEATHS_WITHIN = 600.0


class Deaths:
    """The last deaths of one service."""

    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=DEATHS)

    def too_many(self) -> bool:
        """Count a death now and return whether it is one too many."""
        self._times.append(time.monotonic())
        return len(self._times) == DEATHS and self._times[-1] - self._times[0] < DEATHS_WITHIN
