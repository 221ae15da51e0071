"""Requests that are being read and parsed: how many bytes they have, and the thread for large ones.

The event loop parses small requests itself. Large ones wait for their turn: the requests of one
attempt follow one another, so that an attempt delays its own requests only.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import Self, TypeVar

from starlette.requests import Request

from ltrain_train.gateway.apis import RequestLimits
from ltrain_train.gateway.errors import Refused

T = TypeVar("T")

INLINE_BYTES = 64 << 10
"""Bytes of JSON that the event loop parses itself: a millisecond or two."""
INLINE_OBJECTS = 1024
"""Objects in these bytes: a request of 24 KB can have 8,000, which take 15 milliseconds."""
SMALL_BYTES = 1 << 20
"""Bytes of a request that waits for no others."""
TOTAL_BYTES = 512 << 20
"""Bytes of all requests in memory, beyond which those that are not small wait."""
SHARE_BYTES = 64 << 20
"""Bytes of all requests of one attempt."""
PRODUCTION_BYTES = TOTAL_BYTES // 2
"""Bytes of all requests of production."""
FREE_FAULTS = 8
"""Requests of an attempt that are refused or abandoned before the next ones wait."""
FAULT_PAUSE = 0.5
"""Seconds between two such requests of an attempt, and seconds after which one is forgotten."""
MAX_WAITING = 256
"""Requests of an attempt, or of production, that wait before they are read."""
REST = 4.0
"""Seconds without a large request for each second that the thread computed for an attempt."""
READ_TIMEOUT = 60.0
"""Seconds in which the body of a large request arrives."""
WAIT_TIMEOUT = 60.0
"""Seconds that a request waits for its turn or for memory."""
RETRY_AFTER = 5
"""Seconds after which a client should send a request again that waited too long."""


@dataclass(slots=True, eq=False)
class RequestShare:
    """The requests of one attempt, or of production."""

    limit: int = SHARE_BYTES
    """Maximum of their bytes; a single request may have more."""
    size: int = 0
    """Bytes of those in memory."""
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by the one that is being parsed in the thread, or that waits for `slow_down`."""
    rest: float = REST
    """Seconds of rest for each second of computing."""
    rested: float = 0.0
    """Monotonic seconds from which the thread parses the next request."""
    waiting: int = 0
    """Number of requests that wait before they are read."""
    faults: float = 0.0
    """Requests that were refused or abandoned since the last answer, less the forgotten ones."""
    forgotten: float = field(default_factory=time.monotonic)
    """Monotonic seconds until which `faults` are forgotten."""

    def timed(self, function: Callable[[], T]) -> T:
        """Return the result of a function, whose CPU time delays the next request."""
        began = time.thread_time()
        try:
            return function()
        finally:
            spent = time.thread_time() - began
            self.rested = max(self.rested, time.monotonic()) + self.rest * spent

    async def slow_down(self) -> None:
        """Wait after many faults, so that an attempt that repeats them leaves time to others."""
        now = time.monotonic()
        self.faults = max(0.0, self.faults - (now - self.forgotten) / FAULT_PAUSE)
        self.forgotten = now
        if self.faults > FREE_FAULTS:
            with self.queued():
                async with self.turn:
                    await asyncio.sleep(FAULT_PAUSE)

    @contextmanager
    def queued(self) -> Iterator[None]:
        """Count a request that waits before it is read.

        Raises:
            Refused: 429 when too many do.
        """
        if self.waiting >= MAX_WAITING:
            raise Refused(
                HTTPStatus.TOO_MANY_REQUESTS,
                f"{MAX_WAITING} requests wait already. Send fewer at the same time.",
                retry_after=RETRY_AFTER,
            )
        self.waiting += 1
        try:
            yield
        finally:
            self.waiting -= 1


class RequestPool:
    """Reads requests within bounds of memory, and parses them beside the event loop."""

    def __init__(self, limits: RequestLimits, total: int = TOTAL_BYTES) -> None:
        """Prepare; `total` is in bytes, and small requests may exceed it."""
        self.limits = limits
        self._total, self._size = total, 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ltrain-requests")
        self._released = asyncio.Event()

    async def read(self, request: Request, share: RequestShare) -> "HeldRequest":
        """Return the body of a request, whose bytes count until it is released.

        Raises:
            Refused: 413 when it is beyond the limits, 408 when it arrives too slowly, and 503 when
                other requests do not end in time.
        """
        announced = request.headers.get("content-length", "")
        size = int(announced) if announced.isdecimal() else self.limits.size
        self.limits.require_size(size)
        await self.admit(share, size)
        try:
            body = await self._receive(request, size)
        except BaseException:
            self.count(share, -size)
            raise
        self.count(share, len(body) - size)
        return HeldRequest(self, share, body)

    async def admit(self, share: RequestShare, size: int) -> None:
        """Count bytes in memory as soon as they fit.

        Raises:
            Refused: 503 when other requests do not end in time.
        """
        if not self._fits(share, size):
            await self._wait(share, size)
        self.count(share, size)

    async def run(self, share: RequestShare, function: Callable[[], T]) -> T:
        """Return the result of a function, which the thread runs at its turn.

        Raises:
            Refused: 503 when others take too long.
        """
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(WAIT_TIMEOUT), share.turn:
                return await loop.run_in_executor(self._thread, share.timed, function)
        except TimeoutError as error:
            raise _busy() from error

    async def rest(self, share: RequestShare) -> None:
        """Wait until the thread may parse the next large request of an attempt.

        Raises:
            Refused: 503 when that takes too long.
        """
        try:
            async with asyncio.timeout(WAIT_TIMEOUT), share.turn:
                await asyncio.sleep(share.rested - time.monotonic())
        except TimeoutError as error:
            raise _busy() from error

    def count(self, share: RequestShare, size: int) -> None:
        """Count bytes in memory; negative ones are released."""
        share.size += size
        self._size += size
        if size < 0:
            self._released.set()

    async def _receive(self, request: Request, size: int) -> bytes:
        if size <= INLINE_BYTES:
            return await self._collect(request)
        try:
            async with asyncio.timeout(READ_TIMEOUT):
                return await self._collect(request)
        except TimeoutError as error:
            raise Refused(
                HTTPStatus.REQUEST_TIMEOUT,
                f"The request did not arrive within {READ_TIMEOUT:g} s. Send it again.",
            ) from error

    async def _collect(self, request: Request) -> bytes:
        body = bytearray()
        async for part in request.stream():
            body += part
            self.limits.require_size(len(body))
        return bytes(body)

    async def _wait(self, share: RequestShare, size: int) -> None:
        """Wait until a request fits."""
        try:
            with share.queued():
                async with asyncio.timeout(WAIT_TIMEOUT):
                    while not self._fits(share, size):
                        self._released.clear()
                        await self._released.wait()
        except TimeoutError as error:
            raise _busy() from error

    def _fits(self, share: RequestShare, size: int) -> bool:
        """Return whether a request fits beside the others; a single one always does."""
        if share.size and share.size + size > share.limit:
            return False
        return size <= SMALL_BYTES or not self._size or self._size + size <= self._total


class HeldRequest:
    """The body of a request, which counts as memory of its attempt until the block ends."""

    def __init__(self, pool: RequestPool, share: RequestShare, body: bytes) -> None:
        self._pool, self._share = pool, share
        self._set(body)

    def _set(self, body: bytes) -> None:
        self._size = len(body)
        self.body = body
        """The bytes; removed once they are parsed."""
        self._inline = len(body) <= INLINE_BYTES and body.count(b"{") <= INLINE_OBJECTS

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.count(self._share, -self._size)

    async def replace(self, body: bytes) -> None:
        """Replace the body by a longer one, as soon as that fits into memory."""
        self._pool.count(self._share, -self._size)
        self._size = 0
        await self._pool.admit(self._share, len(body))
        self._set(body)

    async def parse(self, function: Callable[[bytes], T]) -> T:
        """Return the result of a function of the body, which is removed."""
        body, self.body = self.body, b""
        if not self._inline:
            await self._pool.rest(self._share)
        return await self.run(partial(function, body))

    async def run(self, function: Callable[[], T]) -> T:
        """Return the result of a function, beside the event loop if the body is large."""
        if self._inline:
            return function()
        return await self._pool.run(self._share, function)


def _busy() -> Refused:
    return Refused(
        HTTPStatus.SERVICE_UNAVAILABLE,
        "The gateway reads other large requests. Send the request again.",
        retry_after=RETRY_AFTER,
    )
