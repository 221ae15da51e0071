"""Wall time by phase, and the share of time in which no engine worked."""

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

ENGINE_PHASES = ("generate", "train", "load")
"""Phases that sample tokens, train the policy, or write and load weights."""


class Phases:
    """A stopwatch with one phase at a time."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)

    @contextmanager
    def measure(self, name: str) -> Iterator[None]:
        """Add the seconds of the block to the phase `name`."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] += time.monotonic() - began

    def pop_seconds(self) -> dict[str, float]:
        """Return the seconds by phase so far, and reset them."""
        rounded = {name: round(seconds, 2) for name, seconds in self.seconds.items()}
        self.seconds.clear()
        return rounded


def idle_share(seconds: dict[str, float], wall: float) -> float:
    """Return the share of `wall` seconds in which no engine worked."""
    busy = sum(seconds.get(name, 0.0) for name in ENGINE_PHASES)
    return max(0.0, 1.0 - busy / wall) if wall > 0 else 0.0
