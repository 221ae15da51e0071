"""Requests that could not be written to disk; they are lost unless they are sent before exit."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Self

from ltrain_instrument.delivery.frames import Record, batch_records


class MemoryBuffer:
    """Requests in memory, with the methods of a segment; not thread-safe."""

    __slots__ = ("_numbers", "_requests", "damaged", "size")

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._requests: dict[int, bytes] = {}
        self.damaged = 0
        self.size = 0
        """Total bytes of the requests."""

    def __len__(self) -> int:
        return len(self._requests)

    def append(self, request: bytes) -> None:
        """Add one request."""
        self._requests[next(self._numbers)] = request
        self.size += len(request)

    def batches(self, limit: int) -> Iterator[list[Record]]:
        """Yield the requests in order, in lists of at most `limit` bytes or of one request."""
        return batch_records([Record(*item) for item in self._requests.items()], limit)

    def mark_sent(self, records: Sequence[Record]) -> None:
        """Remove requests that were sent."""
        for record in records:
            self.size -= len(self._requests.pop(record.offset))

    def remove(self) -> None:
        """Remove all requests, which were sent."""
        self._requests.clear()
        self.size = 0

    def release(self) -> None:
        """Do nothing: requests that were not sent stay in memory."""

    def extend(self, later: Self) -> Self:
        """Append the requests of a later buffer and return this one."""
        for request in later._requests.values():
            self.append(request)
        return self
