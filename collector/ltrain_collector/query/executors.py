"""Schedule queries fairly: keys take turns, and no key can use all slots.

A slot is an executor with one thread, because the engine's readers are bound to their thread. A
query without a free slot waits in the queue of its key. A free slot goes to the next key in turn;
the last slots are reserved for keys without a running query.
"""

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from enum import StrEnum
from typing import Any

from starlette.requests import ClientDisconnect

from ltrain_collector.errors import HttpError, QueryFailed
from ltrain_collector.query.limits import Limits

QUEUE_TIMEOUT = 60.0
"""Seconds that a query waits for a slot."""

RESERVED_SLOTS = 2
"""Slots that are reserved for keys without a running query."""


class NoSlotReason(StrEnum):
    """Why a query did not get a slot."""

    WAITING = "waiting"
    """Too many queries of its key are waiting."""
    TIMEOUT = "patience"
    """No slot became free in time."""
    BYTES = "bytes"
    """The bodies of all requests take too much memory."""
    STOPPING = "stopping"
    """The server is stopping."""


class NoSlot(HttpError):
    """A query that was not started."""

    def __init__(self, status: int, reason: NoSlotReason, message: str) -> None:
        super().__init__(
            status, f"Code: 202. DB::Exception: {message} (TOO_MANY_SIMULTANEOUS_QUERIES)"
        )
        self.reason = reason


class QueryScheduler:
    """Assigns slots to queries; used from one event loop."""

    def __init__(self, name: str, count: int, reserved: int = RESERVED_SLOTS) -> None:
        self._free = [ThreadPoolExecutor(1, f"ltrain-{name}-{n}") for n in range(count)]
        self._reserved = reserved
        self._running = Counter[str]()
        self._waiting = OrderedDict[str, deque[asyncio.Future[ThreadPoolExecutor]]]()
        self._limits: dict[str, int] = {}
        self._closed = False

    @asynccontextmanager
    async def slot(
        self, key: str, limits: Limits, gone: asyncio.Future[Any]
    ) -> AsyncIterator[ThreadPoolExecutor]:
        """Wait for a slot for one query of `key`, and hold it.

        Args:
            gone: is done once the client has disconnected.
        """
        executor = await self._acquire(key, limits, gone)
        try:
            yield executor
        finally:
            self._running[key] -= 1
            self._free.append(executor)
            self._assign_slots()

    def close(self) -> None:
        """Refuse waiting queries and all further ones."""
        self._closed = True
        for queue in self._waiting.values():
            for turn in queue:
                if not turn.done():
                    turn.set_exception(_stopping_refusal())
        self._waiting.clear()

    async def _acquire(
        self, key: str, limits: Limits, gone: asyncio.Future[Any]
    ) -> ThreadPoolExecutor:
        if self._closed:
            raise _stopping_refusal()
        queue = self._waiting.setdefault(key, deque())
        if limits.queued and len(queue) >= limits.queued:
            raise NoSlot(
                429,
                NoSlotReason.WAITING,
                f"{len(queue)} queries of this key are waiting and {self._running[key]} run. Send "
                f"fewer at a time, or {limits.how_to_raise('queued')}.",
            )
        turn: asyncio.Future[ThreadPoolExecutor] = asyncio.get_running_loop().create_future()
        queue.append(turn)
        self._limits[key] = limits.parallel
        self._assign_slots()
        try:
            await asyncio.wait(
                (turn, gone), timeout=QUEUE_TIMEOUT, return_when=asyncio.FIRST_COMPLETED
            )
            if turn.done() and not gone.done():
                executor = turn.result()
                turn = (
                    asyncio.get_running_loop().create_future()
                )  # the assigned slot is not returned
                return executor
        finally:
            self._leave_queue(key, turn)
        if gone.done():
            raise ClientDisconnect("The client disconnected before its query started.")
        raise NoSlot(
            503,
            NoSlotReason.TIMEOUT,
            f"The query waited {QUEUE_TIMEOUT:g} s while {self._running[key]} queries of this key "
            f"ran. Try again, end one, or {limits.how_to_raise('parallel')}.",
        )

    def _leave_queue(self, key: str, turn: "asyncio.Future[ThreadPoolExecutor]") -> None:
        """Remove a query from its queue, and pass on a slot that was already assigned to it."""
        queue = self._waiting.get(key)
        if queue is not None and turn in queue:
            queue.remove(turn)
        if turn.done() and not turn.cancelled() and turn.exception() is None:
            self._running[key] -= 1
            self._free.append(turn.result())
        self._assign_slots()

    def _assign_slots(self) -> None:
        """Assign free slots to the keys in turn."""
        while self._free and (key := self._next()) is not None:
            turn = self._waiting[key].popleft()
            self._waiting.move_to_end(key)
            if not turn.done():
                self._running[key] += 1
                turn.set_result(self._free.pop())
        for key in [key for key, queue in self._waiting.items() if not queue]:
            del self._waiting[key]
        self._running += Counter()  # remove keys without a query

    def _next(self) -> str | None:
        for key, queue in self._waiting.items():
            running = self._running[key]
            most = self._limits[key] or running + 1
            if queue and (not running or (running < most and len(self._free) > self._reserved)):
                return key
        return None


STOPPING = "The server is stopping; try again when it is back."


def stopping_error() -> QueryFailed:
    """Return the error of a query that the server ended when it stopped."""
    return QueryFailed(f"Code: 394. DB::Exception: {STOPPING} (QUERY_WAS_CANCELLED)", 394)


def _stopping_refusal() -> NoSlot:
    return NoSlot(503, NoSlotReason.STOPPING, STOPPING)
