"""The turns of the gateway's vLLM on a GPU that it shares with a learner.

* vLLM is awake only while the gateway has the turn (`GpuTurn`); it also starts within the turn.
* While vLLM sleeps, calls wait. Its next version ends the sleep: the weights take their memory
  again before they are replaced, and the KV cache afterwards.
* vLLM that dies in its sleep starts again when the learner has ended its turn.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from http import HTTPStatus

from ltrain_train.gateway.errors import Refused
from ltrain_train.gateway.serving.policy_server import PolicyServer
from ltrain_train.processes import GpuTurn

ASLEEP = "vLLM sleeps while the learner uses the GPU"
POLL = 0.1
"""Seconds between two attempts to take the turn."""


class VllmTurns:
    """The turns of all vLLM servers of a gateway; without a `turn` they never sleep."""

    def __init__(self, turn: GpuTurn | None = None) -> None:
        self._turn = turn
        self.servers: list[PolicyServer] = []
        """The servers that the gateway has started."""
        self._lock = asyncio.Lock()

    async def take(self) -> None:
        """Wait for the turn."""
        while self._turn is not None and not self._turn.take(0):
            await asyncio.sleep(POLL)

    async def sleep(self) -> None:
        """End the turn when the calls in flight have ended and every vLLM sleeps; calls wait then.

        Raises:
            Refused: when vLLM has no sleep mode.
        """
        if self._turn is None:
            raise Refused(
                HTTPStatus.CONFLICT,
                "The vLLM of this gateway cannot sleep. Start the gateway with `ltrain serve … -- "
                "--enable-sleep-mode`, on a GPU.",
            )
        async with self._lock, AsyncExitStack() as gates:
            for server in self.servers:
                await gates.enter_async_context(server.gate.shut(ASLEEP))
            for server in self.servers:
                await server.upstream.sleep()
                server.gate.hold(ASLEEP)
            self._turn.end()

    async def wake(self) -> None:
        """Take the turn again, and the memory of the weights; calls wait for the next version."""
        async with self._lock:
            await self._wake_weights()

    @asynccontextmanager
    async def publishing(self) -> AsyncIterator[None]:
        """Wake every vLLM that sleeps: its weights before the block, and its cache after it."""
        async with self._lock:
            await self._wake_weights()
            try:
                yield
            finally:
                for server in self._asleep():
                    async with server.gate.owned():
                        await server.upstream.wake_up("kv_cache")
                        server.gate.release()

    async def _wake_weights(self) -> None:
        for server in self._asleep():
            await self.take()
            await server.upstream.wake_up("weights")

    def _asleep(self) -> Iterator[PolicyServer]:
        return (server for server in self.servers if server.gate.is_held)
