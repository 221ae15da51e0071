"""The bytes of requests that are here at one time: being read, decoded, waiting for their turn."""

import threading
import time
from types import TracebackType
from typing import Self

from ltrain_collector.ingest.refusals import Overloaded

WAITING_BYTES = 256 << 20
"""Beyond this, clients are told to come back: exporters keep what was refused."""


class Budget:
    """How much may be here; counted in the event loop and in the threads that decode."""

    def __init__(self, limit: int = WAITING_BYTES) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self.waiting = 0
        """Bytes that are here."""

    def admit(self, announced: int = 0) -> None:
        """Refuse a request of so many bytes that has no place, before it is read.

        Raises:
            Overloaded: when it has none.
        """
        if self.waiting + announced > self._limit:
            raise Overloaded(
                f"{self.waiting >> 20} MiB of requests are here, of {self._limit >> 20} that may "
                "be; try again."
            )

    def take(self, size: int) -> None:
        """Count `size` more bytes.

        Raises:
            Overloaded: when they have no place.
        """
        with self._lock:
            self.admit(size)
            self.waiting += size

    def give(self, size: int) -> None:
        """Count `size` bytes less."""
        with self._lock:
            self.waiting -= size


class Arrival:
    """One request, from its first byte to its answer; what it holds is counted until it is left."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._parts: list[bytes] = []
        self._held = 0
        self.size = 0
        """Bytes that came, as they came."""
        self._begun = time.monotonic()

    @property
    def age(self) -> float:
        """Seconds since its first byte."""
        return time.monotonic() - self._begun

    def add(self, part: bytes) -> None:
        """Keep a part of the body.

        Raises:
            Overloaded: when it has no place.
        """
        self.hold(self._held + len(part))
        self._parts.append(part)
        self.size += len(part)

    def hold(self, size: int) -> None:
        """Count `size` bytes for this request from now on.

        Raises:
            Overloaded: when there is no place for so many.
        """
        if size > self._held:
            self._budget.take(size - self._held)
        else:
            self._budget.give(self._held - size)
        self._held = size

    def grow(self, size: int) -> None:
        """Count `size` more bytes for this request.

        Raises:
            Overloaded: when there is no place for so many.
        """
        self.hold(self._held + size)

    def begins(self, size: int) -> bytes:
        """Return the first bytes of its first part."""
        return self._parts[0][:size] if self._parts else b""

    def body(self) -> bytes:
        """Return the body, and keep none."""
        body = b"".join(self._parts)
        self._parts.clear()
        return body

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self.hold(0)
