"""The LoRA adapters that a policy server holds: one for each version that calls may need.

* An adapter is loaded and removed while calls run; no call waits for it.
* The server holds at most `limit` adapters, and fewer if it has fewer places. The oldest that no
  call, no attempt and no policy needs makes room for a new one.
* The version of a held adapter cannot be removed from the disk: vLLM may read its files again.
"""

import os
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus

from ltrain_train.gateway.errors import Refused
from ltrain_train.gateway.serving.upstream import Upstream, UpstreamFailed, UpstreamFull
from ltrain_train.policy import Policies

Key = tuple[str, int]
"""A policy and its version."""


@dataclass(slots=True, eq=False)
class HeldAdapter:
    """One adapter in the server."""

    policy: str
    version: int
    held: int
    """Descriptor that keeps the version on the disk."""
    calls: int = 0
    """Calls in flight that the adapter answers."""

    @property
    def key(self) -> Key:
        """The policy and the version."""
        return self.policy, self.version

    @property
    def model(self) -> str:
        """The name of the adapter in the server."""
        return f"{self.policy}@{self.version}"


class Adapters:
    """The adapters of one server, in the order in which they were loaded."""

    def __init__(self, upstream: Upstream, policies: Policies, limit: int) -> None:
        """Begin without adapters; a `limit` of 0: the server takes none."""
        self._upstream, self._policies = upstream, policies
        self.limit = limit
        self._held: dict[Key, HeldAdapter] = {}

    def __iter__(self) -> Iterator[HeldAdapter]:
        return iter(list(self._held.values()))

    def find(self, policy: str, version: int) -> HeldAdapter | None:
        """Return the adapter of a version; None if the server does not hold it."""
        return self._held.get((policy, version))

    async def load(self, policy: str, version: int, needed: Callable[[], Collection[Key]]) -> None:
        """Load the adapter of a version, unless the server holds it.

        `needed` returns the versions that must stay, besides those with calls in flight.
        """
        if self.find(policy, version) is not None:
            return
        await self._make_room(policy, version, needed)
        adapter = HeldAdapter(policy, version, self._policies.hold(policy, version))
        try:
            await self._load(adapter, needed)
        except BaseException:
            os.close(adapter.held)
            raise
        self._held[adapter.key] = adapter

    async def drop(self, adapter: HeldAdapter) -> None:
        """Remove an adapter from the server; its new calls are not answered any more."""
        del self._held[adapter.key]
        try:
            with suppress(UpstreamFailed):  # a server that has gone has no adapters either
                await self._upstream.unload_adapter(adapter.model)
        finally:
            os.close(adapter.held)

    def forget(self) -> None:
        """Forget the adapters of a server that has other weights now."""
        for adapter in self:
            del self._held[adapter.key]
            os.close(adapter.held)

    async def restore(self) -> None:
        """Load every adapter again into a server that was started again."""
        for adapter in self:
            path = self._policies.path(*adapter.key)
            await self._upstream.load_adapter(adapter.model, path)

    async def _load(self, adapter: HeldAdapter, needed: Callable[[], Collection[Key]]) -> None:
        """Load an adapter; a server without a place for it loses those that nobody needs."""
        path = self._policies.path(adapter.policy, adapter.version)
        while True:
            try:
                return await self._upstream.load_adapter(adapter.model, path)
            except UpstreamFull:
                if not await self._drop_idle(needed):
                    raise

    async def _make_room(
        self, policy: str, version: int, needed: Callable[[], Collection[Key]]
    ) -> None:
        while len(self._held) >= self.limit:
            if not await self._drop_idle(needed):
                raise self._full(policy, version)

    async def _drop_idle(self, needed: Callable[[], Collection[Key]]) -> bool:
        """Remove the oldest adapter that nobody needs; return whether there was one."""
        kept = needed()
        idle = [each for each in self if not each.calls and each.key not in kept]
        if idle:
            await self.drop(idle[0])
        return bool(idle)

    def _full(self, policy: str, version: int) -> Refused:
        if not self.limit:
            return Refused(
                HTTPStatus.CONFLICT,
                f"{policy} v{version} is a LoRA adapter, and this policy server takes none. Start "
                "`ltrain serve` with --lora-rank, or serve merged weights: `ltrain policy export "
                f"{policy}@{version} FOLDER --merged`.",
            )
        names = ", ".join(f"{each.policy} v{each.version}" for each in self)
        return Refused(
            HTTPStatus.CONFLICT,
            f"{policy} v{version} cannot be loaded: the policy server holds {self.limit} adapters "
            f"at most, and attempts or calls need each of {names}. Publish again when attempts "
            "have ended, or start `ltrain serve` with a larger --max-adapters.",
        )
