"""Lanes for queries, shared fairly: keys take turns, and none may hold all of them.

A lane is one thread: the engine's readers are bound to theirs. A query that finds none waits in its
key's own queue. A lane that becomes free goes to the next key in turn, and the last lanes are kept
for keys that have no query running.
"""

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from enum import StrEnum
from typing import Any

from ltrain_collector.asgi import ClientGone, Refused
from ltrain_collector.errors import QueryFailed
from ltrain_collector.query.limits import Limits

PATIENCE = 60.0
"""Seconds that a query waits for a lane."""

SPARE = 2
"""Lanes that only keys without a running query get."""


class Reason(StrEnum):
    """Why a query did not get a lane."""

    WAITING = "waiting"
    """Too many queries of its key wait already."""
    PATIENCE = "patience"
    """No lane became free in time."""
    BYTES = "bytes"
    """The bodies of all requests take too much memory."""
    STOPPING = "stopping"
    """The server stops."""


class NoLane(Refused):
    """A query that was not begun."""

    def __init__(self, status: int, reason: Reason, message: str) -> None:
        super().__init__(
            status, f"Code: 202. DB::Exception: {message} (TOO_MANY_SIMULTANEOUS_QUERIES)"
        )
        self.reason = reason


class Lanes:
    """A number of lanes; used from one event loop."""

    def __init__(self, name: str, count: int, spare: int = SPARE) -> None:
        self._free = [ThreadPoolExecutor(1, f"ltrain-{name}-{n}") for n in range(count)]
        self._spare = spare
        self._running = Counter[str]()
        self._waiting = OrderedDict[str, deque[asyncio.Future[ThreadPoolExecutor]]]()
        self._limits: dict[str, int] = {}
        self._closed = False

    @asynccontextmanager
    async def lane(
        self, key: str, limits: Limits, gone: asyncio.Future[Any]
    ) -> AsyncIterator[ThreadPoolExecutor]:
        """Hold a lane for one query of `key`.

        Args:
            gone: is done when the client has left.

        Raises:
            NoLane: when too many queries of the key wait, none became free in time, or the server
                stops.
            ClientGone: when the client left before its turn.
        """
        lane = await self._turn(key, limits, gone)
        try:
            yield lane
        finally:
            self._running[key] -= 1
            self._free.append(lane)
            self._hand_out()

    def close(self) -> None:
        """Refuse the queries that wait, and all that come."""
        self._closed = True
        for queue in self._waiting.values():
            for turn in queue:
                if not turn.done():
                    turn.set_exception(_refusal())
        self._waiting.clear()

    async def _turn(
        self, key: str, limits: Limits, gone: asyncio.Future[Any]
    ) -> ThreadPoolExecutor:
        if self._closed:
            raise _refusal()
        queue = self._waiting.setdefault(key, deque())
        if limits.waiting and len(queue) >= limits.waiting:
            raise NoLane(
                429,
                Reason.WAITING,
                f"{len(queue)} queries of this key wait already and {self._running[key]} run. Send "
                f"fewer at a time, or {limits.raised('waiting')}.",
            )
        turn: asyncio.Future[ThreadPoolExecutor] = asyncio.get_running_loop().create_future()
        queue.append(turn)
        self._limits[key] = limits.lanes
        self._hand_out()
        try:
            await asyncio.wait((turn, gone), timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED)
            if turn.done() and not gone.done():
                lane = turn.result()
                turn = asyncio.get_running_loop().create_future()  # what is held is not given back
                return lane
        finally:
            self._leave(key, turn)
        if gone.done():
            raise ClientGone("The client left before its query began.")
        raise NoLane(
            503,
            Reason.PATIENCE,
            f"The query waited {PATIENCE:g} s: {self._running[key]} queries of this key run. Try "
            f"again, end one, or {limits.raised('lanes')}.",
        )

    def _leave(self, key: str, turn: "asyncio.Future[ThreadPoolExecutor]") -> None:
        """Take a query out of its queue; a lane that it was just handed goes to the next one."""
        queue = self._waiting.get(key)
        if queue is not None and turn in queue:
            queue.remove(turn)
        if turn.done() and not turn.cancelled() and turn.exception() is None:
            self._running[key] -= 1
            self._free.append(turn.result())
        self._hand_out()

    def _hand_out(self) -> None:
        """Hand free lanes to the keys in turn."""
        while self._free and (key := self._next()) is not None:
            turn = self._waiting[key].popleft()
            self._waiting.move_to_end(key)
            if not turn.done():
                self._running[key] += 1
                turn.set_result(self._free.pop())
        for key in [key for key, queue in self._waiting.items() if not queue]:
            del self._waiting[key]
        self._running += Counter()  # forget keys with no query

    def _next(self) -> str | None:
        for key, queue in self._waiting.items():
            running = self._running[key]
            most = self._limits[key] or running + 1
            if queue and (not running or (running < most and len(self._free) > self._spare)):
                return key
        return None


STOPPING = "The server is stopping; try again when it is back."


def stopping() -> QueryFailed:
    """Return the error of a query that ran when the server stopped."""
    return QueryFailed(f"Code: 394. DB::Exception: {STOPPING} (QUERY_WAS_CANCELLED)", 394)


def _refusal() -> NoLane:
    return NoLane(503, Reason.STOPPING, STOPPING)
