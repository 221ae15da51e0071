"""One policy server: the full weights in it, the adapters that it holds, and the gate of its calls.

Several policies may share a server: those whose versions are adapters of the same weights.
"""

import os
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ltrain_train.gateway.continuation.known_turns import KnownTurns
from ltrain_train.gateway.serving.adapters import Adapters, Key
from ltrain_train.gateway.serving.applied_constraints import AppliedConstraints
from ltrain_train.gateway.serving.canary import Canary
from ltrain_train.gateway.serving.gate import Gate
from ltrain_train.gateway.serving.replicas import Replicas
from ltrain_train.gateway.serving.upstream import Upstream, UpstreamAway, UpstreamFailed
from ltrain_train.gateway.serving.weight_loader import Source, WeightLoader
from ltrain_train.policy import Policies, SharedWeights


@dataclass(frozen=True, slots=True)
class Weights:
    """Full weights: the version of a policy that has them, and their digest."""

    policy: str
    version: int
    digest: str
    """Equal for equal files, also of another policy."""

    @property
    def label(self) -> str:
        """How the server names the weights in it."""
        return f"{self.policy}/v{self.version}"


class PublishedPolicy(Protocol):
    """A policy of the server, as the server's other policies know it."""

    policy: str
    served: int
    """The served version."""
    canary: Canary | None
    """The candidate that answers calls, too."""


class PolicyServer:
    """The state of one server."""

    def __init__(
        self,
        policies: Policies,
        upstream: Upstream,
        weights: Weights,
        *,
        max_adapters: int = 0,
        replicas: int = 1,
        continues: bool = False,
        on_lost: Callable[[], None],
        log: Callable[[str], None],
    ) -> None:
        """Describe a server that has been started with the full weights `weights`.

        Args:
            continues: whether calls of attempts continue earlier ones by token ids.
            on_lost: called when its weights are unknown, so that it must be started again.
        """
        self.policies, self.upstream, self.weights = policies, upstream, weights
        self.loader = WeightLoader(upstream, log)
        self.gate = Gate()
        self.constraints = AppliedConstraints(upstream)
        self.adapters = Adapters(upstream, policies, max_adapters)
        self.replicas = Replicas(upstream, replicas)
        self.known_turns = KnownTurns() if continues else None
        """The turns that calls continue by their ids; None: the chat template renders all prompts.
        """
        self.log = log
        self.publications: list[PublishedPolicy] = []
        """The policies that it serves."""
        self.pinned: Callable[[], Collection[Key]] = tuple
        """Returns the versions to which open attempts are pinned."""
        self.lost_weights = False
        """Whether it answered without its weights or an adapter; the host loads them again."""
        self._on_lost = on_lost
        self._held = policies.hold(weights.policy, weights.version)

    async def label_started(self) -> None:
        """Label the weights that a server has been started with, and load its adapters again."""
        self.constraints.forget()
        self.loader.forget()
        with suppress(UpstreamFailed):  # without a label the next publication loads the weights
            await self.upstream.set_label(self.weights.label)
            await self.upstream.models()
        await self.adapters.restore()

    async def confirm_weights(self) -> bool:
        """Return whether every replica still has the weights, after it may have answered a call.

        A single server needs no check: it cannot lose them and be healthy.
        """
        if self.upstream.has_replicas and not await self.has_weights():
            self.lost_weights = True
        return not self.lost_weights

    async def has_weights(self) -> bool:
        """Return whether the weights in the server are those that this gateway loaded."""
        return await self.upstream.loaded_label() == self.weights.label

    async def reload(self) -> None:
        """Load the weights and the adapters again, while no call runs, if the server lost them."""
        label = await self.upstream.loaded_label()
        if label != self.weights.label:
            await self._load(self.weights)
            self.log(f"the policy server had weights '{label}'; loaded {_name(self.weights)}")
        await self.adapters.restore()
        self.lost_weights = False

    async def stage(self, weights: Weights, shared: SharedWeights | None = None) -> None:
        """Load weights beside those in the server, if it can, while calls run.

        Args:
            weights: the weights.
            shared: the memory of a learner that has them, too.
        """
        await self.loader.stage(Source(self._path(weights), shared))

    async def load(self, weights: Weights, shared: SharedWeights | None = None) -> None:
        """Load weights and adapters again, or other weights, while no call runs."""
        if weights.digest == self.weights.digest:
            await self.reload()
        else:
            await self._replace(weights, shared)

    async def _replace(self, weights: Weights, shared: SharedWeights | None) -> None:
        """Load other weights, while no call runs; adapters of the previous ones are removed."""
        try:
            await self._load(weights, shared)
        except UpstreamFailed as error:
            await self._return_to(self.weights, weights, error)
            raise
        for adapter in self.adapters:
            await self.adapters.drop(adapter)
        self.set_weights(weights)

    def set_weights(self, weights: Weights) -> None:
        """Record the weights in the server, and keep their version on the disk."""
        if weights.digest != self.weights.digest:
            self.adapters.forget()
        held, self._held = self._held, self.policies.hold(weights.policy, weights.version)
        os.close(held)
        self.weights = weights

    async def _return_to(self, before: Weights, failed: Weights, error: UpstreamFailed) -> None:
        try:
            await self._load(before)
        except UpstreamFailed:
            self._on_lost()
            raise UpstreamAway(
                f"The policy server was lost while it loaded {_name(failed)}: {error} Publish "
                f"v{failed.version} again when the server serves v{before.version}."
            ) from error

    async def _load(self, weights: Weights, shared: SharedWeights | None = None) -> None:
        await self.loader.load(Source(self._path(weights), shared), weights.label)

    def _path(self, weights: Weights) -> Path:
        return self.policies.path(weights.policy, weights.version)


def read_weights(policies: Policies, policy: str, version: int) -> Weights:
    """Return the full weights of a version: of an adapter, those of its base."""
    base = policies.read_version(policy, version).weights_version
    return Weights(policy, base, policies.read_version(policy, base).base_digests()["model"])


def _name(weights: Weights) -> str:
    return f"{weights.policy} v{weights.version}"
