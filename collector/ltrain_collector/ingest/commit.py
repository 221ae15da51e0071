"""Group commit: requests that arrive together are inserted together, and answered after that.

Nobody hears of success before the rows are readable. A kill in between loses nothing: the client
heard nothing and sends again, and a span that came twice is read once.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from ltrain_collector.errors import NO_CODE, QueryFailed
from ltrain_instrument.errors import LtrainError

WINDOW = 0.03
"""Seconds a commit waits for company."""

PACE = 0.1
"""Seconds from one insert's beginning to the next one's: an insert and the merge it causes cost
about 20 ms of CPU however small it is, and trainer and policy server want that CPU."""

GROUP_BYTES = 24 << 20
"""A larger group gains nothing and costs memory."""

WAITING_BYTES = 256 << 20
"""Beyond this, clients are told to come back: exporters keep what was refused."""

logger = logging.getLogger(__name__)

Insert = Callable[[list[bytes]], object]


class Overloaded(LtrainError, MemoryError):
    """More is waiting than memory should hold; the client tries again."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    payload: bytes
    done: asyncio.Future[None]


class GroupCommit:
    """One writer for all requests; lives in one event loop."""

    def __init__(self, insert: Insert, window: float = WINDOW, pace: float = PACE) -> None:
        self._insert = insert
        self._window = window
        self._pace = pace
        self._waiting: list[_Waiting] = []
        self._waiting_bytes = 0
        self._arrived = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, "ltrain-commit")
        self.inserts = 0
        self.failures = 0

    async def commit(self, payload: bytes) -> None:
        """Return once `payload` is readable.

        Raises:
            Overloaded: when too much is waiting.
            QueryFailed: when the engine refuses these rows.
        """
        if self._waiting_bytes > WAITING_BYTES:
            raise Overloaded(f"{self._waiting_bytes >> 20} MiB wait to be inserted; try again.")
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(payload, done))
        self._waiting_bytes += len(payload)
        self._arrived.set()
        await done

    async def run(self) -> None:
        """Commit groups until cancelled."""
        clock = asyncio.get_running_loop().time
        begun = clock() - self._pace
        while True:
            await self._arrived.wait()
            await asyncio.sleep(max(self._window, begun + self._pace - clock()))
            begun = clock()
            group = self._take()
            if not self._waiting:
                self._arrived.clear()
            await self._commit(group)
            self._waiting_bytes -= sum(len(one.payload) for one in group)

    def _take(self) -> list[_Waiting]:
        size = count = 0
        while count < len(self._waiting) and (not count or size < GROUP_BYTES):
            size += len(self._waiting[count].payload)
            count += 1
        group, self._waiting = self._waiting[:count], self._waiting[count:]
        return group

    async def _commit(self, group: list[_Waiting]) -> None:
        """Insert the group; where that fails, one by one, so that the bad one fails alone."""
        loop = asyncio.get_running_loop()
        self.inserts += 1
        try:
            payloads = [one.payload for one in group]
            await loop.run_in_executor(self._thread, self._insert, payloads)
        # whatever it is, those who wait must hear of it, and the next group must have its turn
        except Exception as error:
            if len(group) == 1:
                self._fail(group[0], error)
                return
            for one in group:
                await self._commit([one])
            return
        for one in group:
            if not one.done.done():  # its client may have gone
                one.done.set_result(None)

    def _fail(self, one: _Waiting, error: Exception) -> None:
        self.failures += 1
        logger.warning("ltrain: %d bytes could not be inserted: %s", len(one.payload), error)
        if not one.done.done():
            known = error if isinstance(error, QueryFailed) else QueryFailed(repr(error), NO_CODE)
            one.done.set_exception(known)
