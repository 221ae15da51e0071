"""The limits of a reward: results at a time, and calls that start in a second.

* Waiting for a place is not part of `reward_timeout`.
* Each call counts, one that repeats a failed call too. Calls start at even distances, so that a
  service with a limit on requests gets no bursts.
"""

import threading
import time
from collections.abc import Mapping
from typing import Any

from tenacity import RetryCallState

from ltrain_train.rollout.rewards.source import NO_SERVICES, RewardFailed, RewardSource
from ltrain_train.rollout.tasks import Task
from ltrain_train.sandboxes import Changes

REWARD_CONCURRENCY = 8
"""Results that are judged at a time by default."""


class RewardLimits:
    """The places for calls of one reward, which all threads share."""

    def __init__(self, concurrency: int = REWARD_CONCURRENCY, rate: float | None = None) -> None:
        """Prepare the places.

        Args:
            rate: calls a second; None for as many as there are.
        """
        self.concurrency = concurrency
        self._slots = threading.BoundedSemaphore(concurrency)
        self._distance = 1 / rate if rate else 0.0
        self._lock, self._closed = threading.Lock(), threading.Event()
        self._next = 0.0
        """Monotonic seconds at which the next call may start."""

    def __enter__(self) -> None:
        """Wait until a result may be judged and its first call may start."""
        self._slots.acquire()
        try:
            self.wait()
        except RewardFailed:
            self._slots.release()
            raise

    def __exit__(self, *error: object) -> None:
        """Leave the place to another result."""
        self._slots.release()

    def before_retry(self, state: RetryCallState) -> None:
        """Wait until a repeated call may start; the first one has waited already."""
        if state.attempt_number > 1:
            self.wait()

    def close(self) -> None:
        """End all waits."""
        self._closed.set()

    def wait(self) -> None:
        """Wait until the next call may start.

        Raises:
            RewardFailed: when `close` was called.
        """
        with self._lock:
            now = time.monotonic()
            start = max(now, self._next)
            self._next = start + self._distance
        if self._closed.wait(start - now):
            raise RewardFailed("The run was stopped before the result was judged.")


class LimitedReward:
    """A reward source within its limits."""

    def __init__(self, source: RewardSource, limits: RewardLimits) -> None:
        self._source, self._limits = source, limits
        self.digest = source.digest

    def score(
        self,
        task: Task,
        result: Any,
        services: Mapping[str, str] = NO_SERVICES,
        changes: Changes | None = None,
    ) -> dict[str, float]:
        """Return the reward values by name, as soon as a result may be judged."""
        with self._limits:
            return self._source.score(task, result, services, changes)

    def close(self) -> None:
        """End the waits, and what the source started."""
        self._limits.close()
        self._source.close()
