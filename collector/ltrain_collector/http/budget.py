"""A limit on the memory of requests that are being read, decoded or inserted."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from ltrain_collector.errors import Overloaded

MAX_REQUEST_BYTES = 256 << 20
"""Bytes beyond which requests are refused; exporters retry them."""


class MemoryBudget:
    """Counts the bytes of all requests in memory; usable from any thread."""

    def __init__(self, limit: int = MAX_REQUEST_BYTES) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self.in_use = 0
        """Bytes of all requests in memory."""

    @contextmanager
    def buffer(self) -> Iterator["RequestBuffer"]:
        """Yield the buffer of one request; its memory is counted until the context ends."""
        buffer = RequestBuffer(self)
        try:
            yield buffer
        finally:
            buffer.resize(0)

    def admit(self, announced: int = 0) -> None:
        """Check whether a request of `announced` bytes fits, before it is read.

        Raises:
            Overloaded: it does not fit.
        """
        if self.in_use + announced > self._limit:
            raise Overloaded(
                f"Requests in memory take {self.in_use >> 20} MiB of {self._limit >> 20} MiB; try "
                "again."
            )

    def reserve(self, size: int) -> None:
        """Count `size` more bytes.

        Raises:
            Overloaded: they do not fit.
        """
        with self._lock:
            self.admit(size)
            self.in_use += size

    def release(self, size: int) -> None:
        """Count `size` fewer bytes."""
        with self._lock:
            self.in_use -= size


class RequestBuffer:
    """The body of one request, counted by `budget`."""

    def __init__(self, budget: MemoryBudget) -> None:
        self._budget = budget
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
            self._budget.reserve(size - self._reserved)
        else:
            self._budget.release(self._reserved - size)
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
