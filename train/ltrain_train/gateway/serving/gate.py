"""The gate that every call of a server passes: open, or shut while its weights are replaced.

A call that arrives at a shut gate waits. A call that has passed is answered by the weights that the
server had when it passed.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus

from ltrain_instrument.quantity import quantity
from ltrain_train.gateway.errors import Refused

DRAIN_TIMEOUT = 300.0
"""Seconds that a publication waits for the calls in flight."""


class Gate:
    """Counts the calls in flight."""

    def __init__(self) -> None:
        self.in_flight = 0
        self.shut_count = 0
        """How often the gate was shut; a call compares it to detect a shut during the call."""
        self.reason = ""
        """Why calls wait; '' while the gate is open."""
        self._held = ""
        self._open = asyncio.Event()
        self._open.set()
        self._empty = asyncio.Event()
        self._empty.set()
        self._owner = asyncio.Lock()

    @property
    def is_held(self) -> bool:
        """Whether the gate is shut until `release`."""
        return bool(self._held)

    @property
    def is_open(self) -> bool:
        """Whether calls pass at once."""
        return self._open.is_set()

    async def enter(self) -> None:
        """Wait until the gate is open, and count the call."""
        while not self._open.is_set():
            await self._open.wait()
        self.in_flight += 1
        self._empty.clear()

    def leave(self) -> None:
        """Count the call as ended."""
        self.in_flight -= 1
        if not self.in_flight:
            self._empty.set()

    @asynccontextmanager
    async def owned(self) -> AsyncIterator[None]:
        """Run the block while nobody shuts the gate; calls pass."""
        async with self._owner:
            yield

    @asynccontextmanager
    async def shut(self, reason: str, drain: float = DRAIN_TIMEOUT) -> AsyncIterator[None]:
        """Hold new calls, wait for the calls in flight, then run the block; one owner at a time.

        `/health` reports the `reason`; the calls in flight may take `drain` seconds.
        """
        async with self.owned(), self.closed(reason, drain):
            yield

    @asynccontextmanager
    async def closed(self, reason: str, drain: float = DRAIN_TIMEOUT) -> AsyncIterator[None]:
        """Do what `shut` does, for the owner of the gate."""
        self._open.clear()
        self.shut_count += 1
        self.reason = reason
        try:
            await self._wait_drained(drain)
            yield
        finally:
            self.reason = self._held
            if not self._held:
                self._open.set()

    def hold(self, reason: str) -> None:
        """Keep the gate shut after the block that has shut it."""
        self._held = reason

    def release(self) -> None:
        """Open a gate that is held, for its owner."""
        self._held = self.reason = ""
        self._open.set()

    async def _wait_drained(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._empty.wait(), seconds)
        except TimeoutError as error:
            raise Refused(
                HTTPStatus.GATEWAY_TIMEOUT,
                f"{quantity(self.in_flight, 'call')} still in flight after {seconds:g} s. Publish "
                "again when they have ended, or close their attempts.",
            ) from error
