"""One policy server as a process: started and restarted by the gateway, or attached and awaited.

While a process is replaced by a new one, or a policy server that was started elsewhere is away,
calls wait until the server has its weights and adapters again.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence

from ltrain_train.gateway.errors import Refused
from ltrain_train.gateway.serving.model_process import ModelProcess
from ltrain_train.gateway.serving.policy_server import PolicyServer, read_weights
from ltrain_train.gateway.serving.publication import Publication
from ltrain_train.gateway.serving.turns import VllmTurns
from ltrain_train.gateway.serving.upstream import UpstreamFailed

POLL = 0.2
"""Seconds between two checks of vLLM's process."""
UPSTREAM_POLL = 1.0
"""Seconds between two requests for the health of a policy server."""


class PolicyHost:
    """Keeps one policy server running."""

    def __init__(
        self,
        server: PolicyServer,
        publications: Sequence[Publication],
        process: ModelProcess | None,
        log: Callable[[str], None],
        turns: VllmTurns | None = None,
    ) -> None:
        """Describe a host; without a `process` the server was started elsewhere."""
        self.server, self.publications, self._log = server, publications, log
        self._process = process
        self._turns = turns or VllmTurns()
        self._losses: set[str] = set()
        """The sentences that the user has read on weights which the server has not again yet."""

    async def prepare(self) -> None:
        """Serve the current versions, also if another command changed them while vLLM started."""
        if self._process is None:
            await self._attach()
        else:
            await self.server.label_started()
        for publication in self.publications:
            await publication.resume()
            if publication.served != publication.kept_version:
                await publication.load(publication.kept_version)

    async def watch(self) -> None:
        """Start the process again when it dies, or hold the calls while a server is away."""
        if self._process is None:
            await self._wait_for_upstream()
        else:
            await asyncio.gather(self._restart(self._process), self._poll_health())

    async def _poll_health(self) -> None:
        """Keep the last known health of vLLM recent, by which cancelled calls are judged."""
        upstream, logged = self.server.upstream, ""
        while True:
            await asyncio.sleep(UPSTREAM_POLL)
            await upstream.is_healthy()
            if upstream.waiting and upstream.waiting != logged:
                self._log(f"calls wait: {upstream.waiting}")
            logged = upstream.waiting

    async def _restart(self, process: ModelProcess) -> None:
        while True:
            await asyncio.sleep(POLL)
            if self.server.lost_weights:
                await self._reload_lost()
            if not (how := process.process.death()):
                continue
            self._log(f"{process.product} died {how}; calls wait while it starts again")
            reason = f"{process.product} ended {how}; it is started again"
            async with self.server.gate.shut(reason):
                await self._turns.take()
                await self._start_again(process)
            self._log(f"{process.product} runs again with {self._served}")

    async def _start_again(self, process: ModelProcess) -> None:
        server = self.server
        first = self.publications[0]
        weights = read_weights(server.policies, first.policy, first.kept_version)
        path = server.policies.path(weights.policy, weights.version)
        await asyncio.to_thread(process.start, path)
        server.set_weights(weights)
        await server.label_started()
        for publication in self.publications:
            await publication.resume()

    async def _wait_for_upstream(self) -> None:
        upstream, gate = self.server.upstream, self.server.gate
        while True:
            await asyncio.sleep(UPSTREAM_POLL)
            if self.server.lost_weights:
                await self._reload_lost()
            if await upstream.is_healthy() or await upstream.is_healthy():  # one may be slow
                continue
            reason = f"the policy server at {upstream.address} does not answer"
            self._log(f"{reason}; calls wait until it does")
            with contextlib.suppress(Refused):  # calls are in flight: the server is only slow
                async with gate.shut(reason):
                    await self.sync_returned()
                self._log(f"the policy server serves {self._served} again")

    async def _reload_lost(self) -> None:
        """Load what a server, or one of its replicas, has lost; retried at the next check."""
        reason = "the policy server lost weights or adapters; they are loaded again"
        self._log_loss(reason)
        try:
            async with self.server.gate.shut(reason):
                await self.server.reload()
                self._losses.clear()
        except (Refused, UpstreamFailed) as error:
            self._log_loss(str(error))
            await asyncio.sleep(UPSTREAM_POLL)

    def _log_loss(self, reason: str) -> None:
        """Print a sentence on a loss once."""
        if reason not in self._losses:
            self._losses.add(reason)
            self._log(reason)

    async def sync_returned(self) -> None:
        """Wait until the policy server answers, and load its weights and adapters into it.

        Each reason for which that fails is logged once.
        """
        logged: set[str] = set()
        while True:
            try:
                if await self.server.upstream.is_healthy():
                    return await self._attach()
            except UpstreamFailed as error:
                self.server.gate.reason = reason = str(error)
                if reason not in logged:
                    logged.add(reason)
                    self._log(reason)
            await asyncio.sleep(UPSTREAM_POLL)

    async def _attach(self) -> None:
        """Load the weights into a policy server that already runs."""
        upstream = self.server.upstream
        served = await upstream.models()
        if upstream.model not in served:
            other = f", or use --policy {served[0]}" if served else ""
            raise UpstreamFailed(
                f"The policy server at {upstream.address} serves "
                f"{', '.join(served) or 'no model'}. Start it with --served-model-name "
                f"{upstream.model}{other}."
            )
        await self.server.reload()

    @property
    def _served(self) -> str:
        return ", ".join(f"{each.policy} v{each.served}" for each in self.publications)
