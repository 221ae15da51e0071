"""Group commit: requests that arrive together are inserted together, and answered after that.

Nobody hears of success before the rows are readable. A kill in between loses nothing: the client
heard nothing and sends again, and what came twice is read once.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from ltrain_collector.errors import NO_CODE, QueryFailed
from ltrain_collector.ingest.counters import TableCounters
from ltrain_collector.ingest.refusals import Malformed, Refusal, Unavailable
from ltrain_collector.ingest.rows import Block

WINDOW = 0.03
"""Seconds a commit waits for company."""

PACE = 0.1
"""Seconds from one insert's beginning to the next one's: an insert and the merge it causes cost
about 20 ms of CPU however small it is, and trainer and policy server want that CPU."""

GROUP_BYTES = 24 << 20
"""A larger group gains nothing and costs memory."""

TOO_MANY_PARTS = 252
"""ClickHouse's number for an insert into more than 100 partitions, and for merges that lag."""

DISK_FULL = 243
"""ClickHouse's number where there is no place for the rows, whosoever they are."""

logger = logging.getLogger(__name__)

Insert = Callable[[list[bytes]], object]


@dataclass(frozen=True, slots=True)
class _Waiting:
    block: Block
    done: asyncio.Future[None]


class GroupCommit:
    """One writer of one table for all requests; lives in one event loop."""

    def __init__(
        self,
        insert: Insert,
        window: float = WINDOW,
        pace: float = PACE,
        counters: TableCounters | None = None,
    ) -> None:
        self._insert = insert
        self._window = window
        self._pace = pace
        self._waiting: list[_Waiting] = []
        self._arrived = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, "ltrain-commit")
        self.counters = counters or TableCounters()

    async def commit(self, block: Block) -> None:
        """Return once `block` is readable.

        Raises:
            Malformed: when no retry will make the engine take these rows.
            Unavailable: when the engine refuses them.
        """
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(block, done))
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

    def _take(self) -> list[_Waiting]:
        size = count = 0
        while count < len(self._waiting) and (not count or size < GROUP_BYTES):
            size += len(self._waiting[count].block.payload)
            count += 1
        group, self._waiting = self._waiting[:count], self._waiting[count:]
        return group

    async def _commit(self, group: list[_Waiting]) -> None:
        """Insert the group; where that fails, one by one, so that the bad one fails alone."""
        loop = asyncio.get_running_loop()
        self.counters.inserts += 1
        try:
            payloads = [one.block.payload for one in group]
            await loop.run_in_executor(self._thread, self._insert, payloads)
        # whatever it is, those who wait must hear of it, and the next group must have its turn
        except Exception as error:
            if len(group) == 1 or _code(error) == DISK_FULL:
                for one in group:
                    self._fail(one, error)
                return
            for one in group:
                await self._commit([one])
            return
        rows = sum(one.block.rows for one in group)
        self.counters.inserted += rows
        self.counters.rows.add(rows)
        for one in group:
            if not one.done.done():  # its client may have gone
                one.done.set_result(None)

    def _fail(self, one: _Waiting, error: Exception) -> None:
        self.counters.failures += 1
        logger.warning("ltrain: %d rows could not be inserted: %s", one.block.rows, error)
        if not one.done.done():
            one.done.set_exception(_refusal(error))


def _refusal(error: Exception) -> Refusal:
    if _code(error) == TOO_MANY_PARTS and "partitions" in str(error):
        return Malformed(
            "The times of this request are of more than 100 months. Check the clock, or send "
            "less at a time."
        )
    if _code(error) == DISK_FULL:
        return Unavailable(f"The store's disk is full; what is sent again has a chance: {error}")
    return Unavailable(f"The store failed: {error}")


def _code(error: Exception) -> int:
    return error.code if isinstance(error, QueryFailed) else NO_CODE
