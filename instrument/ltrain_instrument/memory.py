"""Requests that no disk took: they die with the process, unless the collector takes them first."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Self

from ltrain_instrument.frames import Record, batches


class Memory:
    """Has the methods of a segment; not thread safe."""

    __slots__ = ("_numbers", "_requests", "damaged", "size")

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._requests: dict[int, bytes] = {}
        self.damaged = 0
        self.size = 0
        """Bytes of the requests."""

    def __len__(self) -> int:
        return len(self._requests)

    def append(self, request: bytes) -> None:
        """Keep one request."""
        self._requests[next(self._numbers)] = request
        self.size += len(request)

    def batches(self, limit: int) -> Iterator[list[Record]]:
        """Yield the requests in order, in lists of at most `limit` bytes or of one request."""
        return batches([Record(*item) for item in self._requests.items()], limit)

    def strike(self, records: Sequence[Record]) -> None:
        """Forget requests that were sent."""
        for record in records:
            self.size -= len(self._requests.pop(record.offset))

    def remove(self) -> None:
        """Forget all requests, which were sent."""
        self._requests.clear()
        self.size = 0

    def release(self) -> None:
        """Keep what was not sent."""

    def followed_by(self, later: Self) -> Self:
        """Return this memory with the requests of a later one behind its own."""
        for request in later._requests.values():
            self.append(request)
        return self
