"""A limit on the memory of requests that are being read, decoded or inserted."""

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from ltrain_collector.errors import Overloaded

MAX_REQUEST_BYTES = 256 << 20
"""Bytes beyond which requests are refused; exporters retry them."""

OWNER_DIVISOR = 4
"""The requests of one bound key may take this part of all, so that others find memory."""


class MemoryBudget:
    """Counts the bytes of all requests in memory; usable from any thread."""

    def __init__(self, limit: int = MAX_REQUEST_BYTES) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self.in_use = 0
        """Bytes of all requests in memory."""
        self._in_use_by = Counter[str]()

    @contextmanager
    def buffer(self, owner: str = "") -> Iterator["RequestBuffer"]:
        """Yield the buffer of one request; its memory is counted until the context ends.

        Args:
            owner: the key whose requests share a part of the memory; '' for all of it.
        """
        buffer = RequestBuffer(self, owner)
        try:
            yield buffer
        finally:
            buffer.resize(0)

    def admit(self, announced: int = 0, owner: str = "") -> None:
        """Check whether a request of `announced` bytes fits, before it is read.

        Raises:
            Overloaded: it does not fit.
        """
        if self.in_use + announced > self._limit:
            raise Overloaded(
                f"Requests in memory take {self.in_use >> 20} MiB of {self._limit >> 20} MiB; try "
                "again."
            )
        part = self._limit // OWNER_DIVISOR
        if owner and self._in_use_by[owner] + announced > part:
            raise Overloaded(
                f"Requests of this key in memory take {self._in_use_by[owner] >> 20} MiB of "
                f"{part >> 20} MiB; try again."
            )

    def reserve(self, size: int, owner: str = "") -> None:
        """Count `size` more bytes.

        Raises:
            Overloaded: they do not fit.
        """
        with self._lock:
            self.admit(size, owner)
            self._count(size, owner)

    def release(self, size: int, owner: str = "") -> None:
        """Count `size` fewer bytes."""
        with self._lock:
            self._count(-size, owner)

    def _count(self, size: int, owner: str) -> None:
        self.in_use += size
        if owner:
            self._in_use_by[owner] += size
            if not self._in_use_by[owner]:
                del self._in_use_by[owner]


class RequestBuffer:
    """The body of one request, counted by `budget`."""

    def __init__(self, budget: MemoryBudget, owner: str = "") -> None:
        self._budget = budget
        self._owner = owner
        self._parts: list[bytes] = []
        self._reserved = 0
        self.size = 0
        """Bytes received, before decompression."""
        self._started = time.monotonic()

    @property
    def age(self) -> float:
        """Seconds since the request started."""
        return time.monotonic() - self._started

    def add(self, part: bytes) -> None:
        """Append a part of the body.

        Raises:
            Overloaded: it does not fit.
        """
        self.resize(self._reserved + len(part))
        self._parts.append(part)
        self.size += len(part)

    def resize(self, size: int) -> None:
        """Count `size` bytes in total for this request.

        Raises:
            Overloaded: they do not fit.
        """
        if size > self._reserved:
            self._budget.reserve(size - self._reserved, self._owner)
        else:
            self._budget.release(self._reserved - size, self._owner)
        self._reserved = size

    def grow(self, size: int) -> None:
        """Count `size` more bytes for this request.

        Raises:
            Overloaded: they do not fit.
        """
        self.resize(self._reserved + size)

    def first_bytes(self, size: int) -> bytes:
        """Return the first `size` bytes of the first part."""
        return self._parts[0][:size] if self._parts else b""

    def body(self) -> bytes:
        """Return the body and forget its parts."""
        body = b"".join(self._parts)
        self._parts.clear()
        return body
