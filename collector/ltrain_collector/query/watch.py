"""When a query is ended: its client left, its time is over, or its server stops."""

import asyncio
import time
from typing import Any

from ltrain_collector.errors import QueryFailed
from ltrain_collector.query.lanes import stopping
from ltrain_collector.query.limits import Limits
from ltrain_collector.query.running import Runner

AGAIN = 0.25
"""Seconds between two tries to end a query: it may not have begun yet."""

LATE = 1.0
"""Seconds after the time limit of a reader's query at which it is ended from here: ClickHouse's own
limit comes first where it can."""


class Watch:
    """Ends a query whose client left, whose time is over, or whose server stops."""

    def __init__(
        self,
        runner: Runner,
        tag: str,
        gone: asyncio.Future[Any],
        ended: asyncio.Event,
        limits: Limits,
    ) -> None:
        self._runner = runner
        self._tag = tag
        self.gone = gone
        self._ended = ended
        self.limits = limits
        strict = limits.strict and limits.seconds
        self._until = time.monotonic() + limits.seconds + LATE if strict else None

    @property
    def left(self) -> float | None:
        """Seconds until the query is ended; None where its own settings may choose."""
        return None if self._until is None else max(0.0, self._until - time.monotonic())

    @property
    def patience(self) -> float | None:
        """Seconds that the client has to read a part of the answer."""
        return self.left if self.limits.strict else self.limits.seconds or None

    async def over(self, step: asyncio.Future[Any]) -> Any:
        """Return the next part, once it is there.

        Raises:
            QueryFailed: when the query failed, or was ended here.
        """
        stopped = asyncio.ensure_future(self._ended.wait())
        waiting = (step, self.gone, stopped)
        await asyncio.wait(waiting, timeout=self.left, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if step.done():
            return step.result()
        while not step.done():
            await asyncio.to_thread(self._runner.kill, self._tag)
            await asyncio.wait((step,), timeout=AGAIN)
        try:
            return step.result()
        except QueryFailed as error:
            if self._ended.is_set():
                raise stopping() from error
            raise (error if self.gone.done() else self.limits.timeout()) from error
