"""Publication of a policy version: verify, load while no call runs, then set it as current.

If the policy server refuses the load, the previous version stays in service. If the server dies
during the load, or cannot load the previous version again, it is lost: when `ltrain serve` started
it, it is started again with the previous version, and the client publishes again.
"""

import asyncio
import os
import time
from collections.abc import Callable
from contextlib import suppress

from ltrain_train.gateway.gate import Gate
from ltrain_train.gateway.upstream import Upstream, UpstreamAway, UpstreamFailed
from ltrain_train.policy import Policies


class Publication:
    """The served version of one policy, and its replacement."""

    def __init__(
        self,
        policies: Policies,
        policy: str,
        upstream: Upstream,
        *,
        version: int,
        on_lost: Callable[[], None],
        log: Callable[[str], None],
    ) -> None:
        self.policies, self.policy, self.upstream = policies, policy, upstream
        self.gate = Gate(version)
        self._trial: int | None = None
        self._held = policies.hold(policy, version)
        self._on_lost = on_lost
        self._log = log

    @property
    def version(self) -> int | None:
        """The served version; None if the server's weights are its own."""
        return self.gate.version

    def require_version(self) -> int:
        """Return the served version."""
        return self.gate.version

    @property
    def kept_version(self) -> int:
        """The version that a policy server which starts again must have."""
        return self.policies.current(self.policy) if self._trial is None else self._trial

    async def publish(self, version: int, *, current: bool = True) -> float:
        """Load and serve a version, and return the seconds that calls had to wait.

        Args:
            version: the version.
            current: whether it becomes the current version on disk; without that, this gateway
                alone serves it, until it ends.

        Raises:
            UnknownVersion: when the version does not exist.
            BadModel: when its directory is incomplete or does not fit the policy.
            UpstreamAway: when the policy server died, or has unknown weights and must be restarted.
            UpstreamFailed: when the policy server refuses the version.
        """
        await asyncio.to_thread(self.policies.verify, self.policy, version)
        async with self.gate.shut(f"{self.policy} v{version} is being loaded"):
            began = time.monotonic()
            if version != self.gate.version:
                await self._replace(version)
            else:
                await self.sync_weights()
            if current:
                self.policies.set_current(self.policy, version)
            self._trial = None if current else version
        return time.monotonic() - began

    async def sync_weights(self) -> None:
        """Load the current version if the server has other weights."""
        version, loaded = self.gate.version, await self.upstream.loaded_label()
        if loaded != self._label(version):
            await self._load_weights(version)
            self._log(f"the policy server had weights '{loaded}'; loaded {self.policy} v{version}")

    async def label_started(self, version: int) -> None:
        """Serve the version that a server has been started with, and label the server's weights."""
        self._serve(version)
        with suppress(UpstreamFailed):  # without a label the next publication loads the weights
            await self.upstream.set_label(self._label(version))
            await self.upstream.models()

    async def _replace(self, version: int) -> None:
        before = self.gate.version
        try:
            await self._load_weights(version)
        except UpstreamFailed as error:
            try:
                await self._load_weights(before)
            except UpstreamFailed:
                self._on_lost()
                raise UpstreamAway(
                    f"The policy server was lost while it loaded {self.policy} v{version}: {error} "
                    f"Publish v{version} again when the server serves v{before}."
                ) from error
            raise
        self._serve(version)
        self._log(f"serving {self.policy} v{version}, previously v{before}")

    def _serve(self, version: int) -> None:
        """Record that a version is served, and keep it from being removed."""
        held, self._held = self._held, self.policies.hold(self.policy, version)
        os.close(held)
        self.gate.version = version

    async def _load_weights(self, version: int) -> None:
        await self.upstream.load(self.policies.path(self.policy, version), self._label(version))

    def _label(self, version: int) -> str:
        return f"{self.policy}/v{version}"
