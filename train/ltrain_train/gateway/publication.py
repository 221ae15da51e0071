"""Putting a version into service: checked first, loaded while no call runs, current when loaded.

A load that is refused leaves the version before it in service. A policy server that dies while it
loads, or cannot even go back, is given up and, where ltrain runs it, started again with the version
before; who publishes tries again.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress

from ltrain_train.gateway.gate import Gate
from ltrain_train.gateway.upstream import Upstream, UpstreamAway, UpstreamFailed
from ltrain_train.policy.versions import Policies


class Publication:
    """Which version of one policy is served, and how it changes."""

    def __init__(
        self,
        policies: Policies,
        policy: str,
        upstream: Upstream,
        *,
        version: int,
        give_up: Callable[[], None],
        say: Callable[[str], None],
    ) -> None:
        self.policies, self.policy, self.upstream = policies, policy, upstream
        self.gate = Gate(version)
        self._give_up = give_up
        self._say = say

    async def publish(self, version: int) -> float:
        """Serve a version from now on and return the seconds that calls had to wait.

        Raises:
            UnknownVersion: when there is none.
            BadModel: when its directory is not complete, or does not fit.
            UpstreamAway: when the policy server died, or has unknown weights and must be restarted.
            UpstreamFailed: when the policy server refuses it.
        """
        await asyncio.to_thread(self.policies.check, self.policy, version)
        async with self.gate.shut():
            began = time.monotonic()
            if version != self.gate.version:
                await self._replace(version)
            else:
                await self.join()
            self.policies.set_current(self.policy, version)
        return time.monotonic() - began

    async def join(self) -> None:
        """Load the current version into a server that has other weights."""
        version, loaded = self.gate.version, await self.upstream.loaded()
        if loaded != self._label(version):
            await self._load(version)
            self._say(f"the policy server had weights '{loaded}'; loaded {self.policy} v{version}")

    async def started(self) -> None:
        """Label the weights of a server that was started with the current version."""
        with suppress(UpstreamFailed):  # without a label, the next publication loads them
            await self.upstream.label(self._label(self.gate.version))

    async def _replace(self, version: int) -> None:
        before = self.gate.version
        try:
            await self._load(version)
        except UpstreamFailed as error:
            try:
                await self._load(before)
            except UpstreamFailed:
                self._give_up()
                raise UpstreamAway(
                    f"The policy server was lost while it loaded {self.policy} v{version}: {error} "
                    f"Publish v{version} again when it serves v{before}."
                ) from error
            raise
        self.gate.version = version
        self._say(f"serving {self.policy} v{version}, before it v{before}")

    async def _load(self, version: int) -> None:
        await self.upstream.load(self.policies.path(self.policy, version), self._label(version))

    def _label(self, version: int) -> str:
        return f"{self.policy}/v{version}"
