"""End queries whose client disconnected, whose time limit has passed, or whose server stops."""

import asyncio
import time
from typing import Any

from ltrain_collector.errors import QueryFailed
from ltrain_collector.query.execution import QueryRunner
from ltrain_collector.query.executors import stopping_error
from ltrain_collector.query.limits import Limits

KILL_INTERVAL = 0.25
"""Seconds between two attempts to end a query: it may not have started yet."""

LIMIT_GRACE_SECONDS = 1.0
"""Seconds after the time limit of a reader's query at which the watchdog ends it: usually,
ClickHouse's own limit ends it first."""


class QueryWatchdog:
    """Ends one query when its client disconnects, its time limit passes, or the server stops."""

    def __init__(
        self,
        runner: QueryRunner,
        tag: str,
        gone: asyncio.Future[Any],
        stopping: asyncio.Event,
        limits: Limits,
    ) -> None:
        self._runner = runner
        self._tag = tag
        self.gone = gone
        self._stopping = stopping
        self.limits = limits
        strict = limits.strict and limits.seconds
        self._deadline = time.monotonic() + limits.seconds + LIMIT_GRACE_SECONDS if strict else None

    @property
    def remaining(self) -> float | None:
        """Seconds until the query is ended; None if the watchdog has no time limit."""
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    @property
    def read_timeout(self) -> float | None:
        """Seconds in which the client must read a part of the response."""
        return self.remaining if self.limits.strict else self.limits.seconds or None

    async def wait_for(self, step: asyncio.Future[Any]) -> Any:
        """Wait for the next part of the response and return it.

        Raises:
            QueryFailed: the query failed, or the watchdog ended it.
        """
        stopped = asyncio.ensure_future(self._stopping.wait())
        waiting = (step, self.gone, stopped)
        await asyncio.wait(waiting, timeout=self.remaining, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if step.done():
            return step.result()
        while not step.done():
            await asyncio.to_thread(self._runner.kill, self._tag)
            await asyncio.wait((step,), timeout=KILL_INTERVAL)
        try:
            return step.result()
        except QueryFailed as error:
            if self._stopping.is_set():
                raise stopping_error() from error
            raise (error if self.gone.done() else self.limits.timeout_error()) from error
