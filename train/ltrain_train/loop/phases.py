"""Where the wall time goes: seconds by phase, and the share in which no engine was at work."""

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

ENGINE_PHASES = ("generate", "train", "load")
"""Phases in which tokens are sampled, a policy is trained, or weights are written and loaded."""


class Phases:
    """A stopwatch that is always in one phase or in none."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] += time.monotonic() - began

    def pop_seconds(self) -> dict[str, float]:
        """Give the seconds so far, and start again from none."""
        rounded = {name: round(seconds, 2) for name, seconds in self.seconds.items()}
        self.seconds.clear()
        return rounded


def idle_share(seconds: dict[str, float], wall: float) -> float:
    """Give the share of `wall` seconds in which no engine was at work."""
    busy = sum(seconds.get(name, 0.0) for name in ENGINE_PHASES)
    return max(0.0, 1.0 - busy / wall) if wall > 0 else 0.0
