"""The gate that every call goes through: open while a version serves, shut while it is replaced.

A call that arrives while it is shut waits; a call that went through belongs to the version that
was served then, to its end.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus

from ltrain_train.gateway.refusal import Refused

DRAIN = 300.0
"""Seconds that a publication waits for the calls before it."""


class Gate:
    """Counts the calls that are in flight under the served version."""

    def __init__(self, version: int) -> None:
        self.version = version
        self.in_flight = 0
        self.shuts = 0
        """How often it was shut: a call that saw it change was in flight then."""
        self._open = asyncio.Event()
        self._open.set()
        self._empty = asyncio.Event()
        self._empty.set()
        self._owner = asyncio.Lock()

    @property
    def is_open(self) -> bool:
        return self._open.is_set()

    async def enter(self) -> int:
        """Wait until it is open, count the call, and give the version that answers it."""
        while not self._open.is_set():
            await self._open.wait()
        self.in_flight += 1
        self._empty.clear()
        return self.version

    def leave(self) -> None:
        """Count the call as ended."""
        self.in_flight -= 1
        if not self.in_flight:
            self._empty.set()

    @asynccontextmanager
    async def shut(self, drain: float = DRAIN) -> AsyncIterator[None]:
        """Keep new calls waiting and go on when the others have ended; one owner at a time.

        Raises:
            Refused: when calls are still in flight after `drain` seconds.
        """
        async with self._owner:
            self._open.clear()
            self.shuts += 1
            try:
                await self._drained(drain)
                yield
            finally:
                self._open.set()

    async def _drained(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._empty.wait(), seconds)
        except TimeoutError as error:
            raise Refused(
                HTTPStatus.GATEWAY_TIMEOUT,
                f"{self.in_flight} calls are still in flight after {seconds:g} s. Publish when "
                "they have ended, or close their attempts.",
            ) from error
