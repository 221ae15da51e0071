"""Group commit: insert requests that arrive together in one insert, and answer them after it.

A client gets a successful response only once its rows can be read. A crash before that loses
nothing: the client sends again, and duplicate rows are read once.
"""

import asyncio
import errno
import logging
import os
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from ltrain_collector.errors import NO_CODE, Malformed, OtlpError, QueryFailed, Unavailable
from ltrain_collector.ingest.instruments import IngestInstruments
from ltrain_collector.signals import Block
from ltrain_instrument.machine import REMEDIES
from ltrain_instrument.quantity import quantity

WINDOW = 0.03
"""Seconds that a commit waits for further requests."""

PACE = 0.3
"""Seconds between the starts of two inserts after one of few rows: any insert and the merge that it
causes take 30 to 50 ms of CPU, which trainer and policy server need."""

BUSY_PACE = 0.1
"""Seconds between the starts of two inserts after one of `MANY_ROWS` or more."""

MANY_ROWS = 100
"""Rows whose own cost is about that of an insert."""

GROUP_BYTES = 24 << 20
"""Size limit of a group: a larger one takes memory and is not faster."""

TOO_MANY_PARTS = 252
"""ClickHouse's error code of an insert into more than 100 partitions, and of merges that lag."""

DISK_FULL, MEMORY_FULL = 243, 241
"""ClickHouse's error codes of a full disk, and of an engine whose memory queries hold."""

STD_EXCEPTION = 1001
"""ClickHouse's error code of a folder of rows that the system refuses to create."""

DISK_STATES = {errno.ENOSPC: "full", errno.EROFS: "read-only"}
"""States of a disk on which no insert succeeds, by the system's error."""

logger = logging.getLogger(__name__)

Insert = Callable[[list[bytes]], object]

MAX_REQUESTS = 4096
"""Number of requests that are remembered: a client sends again within seconds."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    block: Block
    done: asyncio.Future[None]


class GroupCommit:
    """Inserts the rows of all requests into one table; used from one event loop."""

    def __init__(
        self, insert: Insert, table: str, instruments: IngestInstruments, window: float = WINDOW
    ) -> None:
        self._insert = insert
        self._window = window
        self._waiting: list[_Waiting] = []
        self._arrived = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, "ltrain-commit")
        self._instruments = instruments
        self._labels = {"table": table}

    async def commit(self, block: Block) -> None:
        """Return once the rows of `block` can be read."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(block, done))
        self._arrived.set()
        await done

    async def run(self) -> None:
        """Commit groups until cancelled."""
        clock = asyncio.get_running_loop().time
        next_start = clock()
        while True:
            await self._arrived.wait()
            await asyncio.sleep(max(self._window, next_start - clock()))
            group = self._take()
            next_start = clock() + (PACE if _count_rows(group) < MANY_ROWS else BUSY_PACE)
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
        """Insert the group; if that fails, insert each block alone, so that only bad ones fail."""
        loop = asyncio.get_running_loop()
        self._instruments.inserts.add(1, self._labels)
        try:
            payloads = [one.block.payload for one in group]
            await loop.run_in_executor(self._thread, self._insert, payloads)
        # whatever it is, waiting requests must get the error, and the next group must be inserted
        except Exception as error:
            if len(group) == 1 or _code(error) == MEMORY_FULL or _disk_error(error):
                for one in group:
                    self._fail(one, error)
                return
            for one in group:
                await self._commit([one])
            return
        rows = _count_rows(group)
        self._instruments.inserted.add(rows, self._labels)
        self._instruments.rows_per_insert.record(rows, self._labels)
        for one in group:
            if not one.done.done():  # the client may have disconnected
                one.done.set_result(None)

    def _fail(self, one: _Waiting, error: Exception) -> None:
        self._instruments.failures.add(1, self._labels)
        rows = quantity(one.block.rows, "row")
        logger.warning("ltrain: %s could not be inserted: %s", rows, error)
        if not one.done.done():
            one.done.set_exception(_refusal(error))


def _count_rows(group: list[_Waiting]) -> int:
    return sum(one.block.rows for one in group)


def _refusal(error: Exception) -> OtlpError:
    if _code(error) == TOO_MANY_PARTS and "partitions" in str(error):
        return Malformed(
            "The times in this request are in more than 100 different months. Check the sender's "
            "clock, or send less at a time."
        )
    if number := _disk_error(error):
        state, remedy = DISK_STATES[number], REMEDIES[number]
        return Unavailable(f"The store's disk is {state}. {remedy}, then send again: {error}")
    return Unavailable(f"The store could not insert the rows; send again: {error}")


def _disk_error(error: Exception) -> int:
    """Return the system's error if the disk refuses the rows; else 0."""
    if _code(error) == DISK_FULL:
        return errno.ENOSPC
    if _code(error) != STD_EXCEPTION:  # the text may quote the rows
        return 0
    return next((each for each in DISK_STATES if os.strerror(each) in str(error)), 0)


def _code(error: Exception) -> int:
    return error.code if isinstance(error, QueryFailed) else NO_CODE


class RecentRequests:
    """The most recently stored requests, by a hash of their bytes."""

    def __init__(self, max_requests: int = MAX_REQUESTS) -> None:
        self._max_requests = max_requests
        self._stored: OrderedDict[int, None] = OrderedDict()

    def add(self, digest: int) -> bool:
        """Remember a stored request, and return whether the same bytes were stored before."""
        before = digest in self._stored
        self._stored[digest] = None
        self._stored.move_to_end(digest)
        if len(self._stored) > self._max_requests:
            self._stored.popitem(last=False)
        return before
