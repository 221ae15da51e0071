"""The served version of one policy: which version answers a call, and how another takes its place.

* An adapter of the weights in the server is published while calls run. Other weights are loaded
  while no call runs: new calls wait for those in flight, and for the load.
* An attempt stays with the version of its first call as long as the server holds it.
* If the server refuses a version, the previous one stays in service. If the server dies during the
  load, or cannot load the previous weights again, it is lost: when `ltrain serve` started it, it is
  started again with the previous version, and the client publishes again.
* A candidate answers a share of the conversations of production, beside the served version; after
  its promotion the version before it may, for a while. Both have the weights in the server.
"""

import asyncio
import os
import time
from collections.abc import Collection
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import TYPE_CHECKING

from ltrain_instrument.errors import LtrainError
from ltrain_train.gateway.attempts import AttemptCalls
from ltrain_train.gateway.errors import Refused
from ltrain_train.gateway.serving.adapters import HeldAdapter, Key
from ltrain_train.gateway.serving.canary import Canary, RecentUnits
from ltrain_train.gateway.serving.gate import Gate
from ltrain_train.gateway.serving.policy_server import PolicyServer, Weights, read_weights
from ltrain_train.gateway.serving.replicas import Replica
from ltrain_train.gateway.serving.upstream import Upstream, UpstreamAway
from ltrain_train.policy import Deployments, SharedWeights
from ltrain_transforms.deployment_file import Deployment, Stage
from ltrain_transforms.errors import BadPolicyFile

if TYPE_CHECKING:
    from ltrain_train.gateway.exchange import ModelServer


@dataclass(frozen=True, slots=True)
class ServedVersion:
    """The version that answers one call."""

    version: int
    model: str
    """The model of the server that has it."""
    adapter: HeldAdapter | None = None
    replica: Replica | None = None
    """The replica of the server that answers; None if there is only one."""


class Publication:
    """The served version of one policy, and its replacement."""

    collection: "ModelServer | None" = None
    """The server that answers the policy's calls, if the gateway does not manage it."""

    def __init__(self, policy: str, server: PolicyServer, *, version: int) -> None:
        """Serve a version whose weights the server has."""
        self.policies, self.policy, self.server = server.policies, policy, server
        self.served = version
        self._trial: int | None = None
        self.units = RecentUnits()
        self.canary: Canary | None = None
        """The trial that is under way; None: there is none."""
        self.deployments = Deployments(self.policies, policy)
        self._held = self.policies.hold(policy, version)
        self._digests: dict[int, str] = {}
        """The digest of each version that is full weights, as far as it was needed; else ''."""
        server.publications.append(self)

    @property
    def version(self) -> int | None:
        """The served version; None if the server's weights are its own."""
        return self.served

    def require_version(self) -> int:
        """Return the served version."""
        return self.served

    @property
    def upstream(self) -> Upstream:
        """The policy's server."""
        return self.server.upstream

    @property
    def gate(self) -> Gate:
        """The gate of the policy's server."""
        return self.server.gate

    @property
    def kept_version(self) -> int:
        """The version that a policy server which starts again must have."""
        return self.policies.current(self.policy) if self._trial is None else self._trial

    async def enter(self, attempt: AttemptCalls) -> ServedVersion:
        """Wait until the gate is open, count the call, and return the version that answers it."""
        await self.gate.enter()
        try:
            chosen = self._choose(attempt)
        except Refused:
            self.gate.leave()
            raise
        if chosen.adapter is not None:
            chosen.adapter.calls += 1
        return replace(chosen, replica=self.server.replicas.enter(attempt.replicas, self.policy))

    def leave(self, chosen: ServedVersion) -> None:
        """Count the call as ended."""
        self.server.replicas.leave(chosen.replica)
        if chosen.adapter is not None:
            chosen.adapter.calls -= 1
        self.gate.leave()

    def holds(self, version: int) -> bool:
        """Return whether the server can answer calls of a version."""
        if version == self.served or self.server.adapters.find(self.policy, version) is not None:
            return True
        return self._digest(version) == self.server.weights.digest

    async def offer(self, shared: SharedWeights) -> None:
        """Begin to load the weights of a version that a learner still writes, while calls run."""
        async with self.gate.owned():
            await self.server.loader.offer(shared)

    async def load(
        self,
        version: int,
        *,
        current: bool = True,
        shared: SharedWeights | None = None,
        promotion: Deployment | None = None,
    ) -> float:
        """Load and serve a version, and return the seconds that calls had to wait.

        If it does not become `current` on disk, this gateway alone serves it, until it ends.

        Args:
            version: the version.
            current: whether it becomes the current version on disk.
            shared: the memory of a learner that has its weights, too.
            promotion: the stage with which it becomes current.

        Raises:
            BadDeployment: when the policy is frozen at another version.
        """
        self._require_thawed(version)
        await asyncio.to_thread(self.policies.verify, self.policy, version)
        weights = read_weights(self.policies, self.policy, version)
        async with self.gate.owned():
            self._require_thawed(version)  # a freeze does not wait for the load before
            if weights.digest == self.server.weights.digest and await self.server.has_weights():
                await self._serve(version)
                self._record(version, promotion, current=current)
                return 0.0
            self._require_own_server(version, weights)
            await self.server.stage(weights, shared)
            async with self.gate.closed(f"{self.policy} v{version} is being loaded"):
                began = time.monotonic()
                await self.server.load(weights, shared)
                await self._serve(version)
                self._record(version, promotion, current=current)
            return time.monotonic() - began

    async def resume(self) -> None:
        """Serve the kept version in a server that was started or attached and has its weights."""
        version = self.kept_version
        weights = read_weights(self.policies, self.policy, version)
        if weights.digest == self.server.weights.digest:
            await self._serve(version, quiet=True)
        try:
            await self._resume_trial(version)
        except BadPolicyFile as error:
            self.server.log(f"policy {self.policy} has no candidate: {error}")

    async def deploy(
        self, version: int, stage: Stage, *, share: float, by: str, reason: str
    ) -> Deployment:
        """Move a version to a stage on its way to the users, and return it.

        A candidate that retires waits for no call and for no load.

        Raises:
            BadDeployment: when no step leads there, or the policy is frozen.
            Refused: when the server cannot hold the version.
        """
        planned = self.deployments.plan(version, stage, share=share, by=by, reason=reason)
        if planned.makes_current is not None:
            await self.load(planned.makes_current, promotion=planned)
        elif planned.serves:
            async with self.gate.owned():
                await self._hold(version)
                # a freeze does not wait for the load
                planned = self.deployments.plan(version, stage, share=share, by=by, reason=reason)
                self._record_stage(planned)
        else:
            self._record_stage(planned)
        self.server.log(f"{self.policy} v{version} is {planned.describe()}")
        return planned

    def freeze(self, by: str, reason: str) -> None:
        """Let the current version answer all calls, and no other one become current."""
        self.canary = None
        self.deployments.freeze(by, reason)
        self.server.log(f"{self.policy} is frozen at v{self.served}")

    def _require_thawed(self, version: int) -> None:
        """Check that another version than the served one may become current."""
        if version != self.served:
            self.deployments.require_thawed()

    def _record_stage(self, deployment: Deployment) -> None:
        """Record a stage, and assign conversations by it."""
        if not deployment.serves:
            self.canary = None
        self.deployments.record(deployment)
        if deployment.serves:
            self.canary = Canary(self.policy, deployment)

    async def _resume_trial(self, current: int) -> None:
        """Go on with the trial of an earlier process; a candidate that cannot be held retires."""
        candidate = self.deployments.candidate()
        if candidate is None or not candidate.serves or self.canary is not None:
            return
        is_current = candidate.version == current
        if is_current is not (candidate.stage is Stage.WATCHED):
            # a kill came between the change of the current version and its record
            self._record_stage(candidate.end(current, by="ltrain serve"))
            return
        try:
            if candidate.beside is not None:
                await self._hold(candidate.beside)
            self.canary = Canary(self.policy, candidate)
        except UpstreamAway:  # it is started again
            raise
        except (Refused, LtrainError) as error:
            text = f"v{candidate.beside} cannot be served: {error}"
            self._record_stage(candidate.end(current, by="ltrain serve", reason=text))
            self.server.log(f"the trial of {self.policy} v{candidate.version} has ended: {text}")

    async def _hold(self, version: int) -> None:
        """Load the adapter of a version beside the served one; the server may have its weights."""
        await asyncio.to_thread(self.policies.verify, self.policy, version)
        weights = read_weights(self.policies, self.policy, version)
        if weights.digest != self.server.weights.digest:
            name = f"{self.policy} v{version}"
            raise Refused(
                HTTPStatus.CONFLICT,
                f"{name} cannot answer calls beside v{self.served}: it is not an adapter of the "
                "weights in the policy server. Train adapters (`lora_rank` in [train], `publish = "
                '"adapter"` in [serve]), or make it current for all users: `ltrain policy use '
                f"{self.policy}@{version}`.",
            )
        await self._load_adapter(version)

    async def _load_adapter(self, version: int) -> None:
        """Load a version that is an adapter; of another one the server has the weights."""
        if self.policies.read_version(self.policy, version).artifact == "adapter":
            await self.server.adapters.load(self.policy, version, self._needed)

    def _choose(self, attempt: AttemptCalls) -> ServedVersion:
        version = attempt.versions.setdefault(self.policy, self.served)
        if not self.holds(version):
            if attempt.pinned:
                raise Refused(HTTPStatus.CONFLICT, self.describe_gone(version))
            version = attempt.versions[self.policy] = self.served
        adapter = self.server.adapters.find(self.policy, version)
        return ServedVersion(version, adapter.model if adapter else self.upstream.model, adapter)

    async def _serve(self, version: int, *, quiet: bool = False) -> None:
        """Serve a version whose weights are in the server."""
        await self._load_adapter(version)
        before, self.served = self.served, version
        held, self._held = self._held, self.policies.hold(self.policy, version)
        os.close(held)
        if version != before and not quiet:
            self.server.log(f"serving {self.policy} v{version}, previously v{before}")

    def _record(self, version: int, promotion: Deployment | None, *, current: bool) -> None:
        if current:
            self.policies.promote(self.policy, version)
            if promotion is not None:
                self._record_stage(promotion)
            elif self.canary is not None:
                self._record_stage(self.canary.deployment.end(version, by="ltrain serve"))
        self._trial = None if current else version

    def _needed(self) -> Collection[Key]:
        served = {(each.policy, each.served) for each in self.server.publications}
        return served | self._tried | set(self.server.pinned())

    @property
    def _tried(self) -> set[Key]:
        publications = self.server.publications
        trials = ((each.policy, each.canary) for each in publications if each.canary)
        found = ((policy, canary.beside) for policy, canary in trials)
        return {(policy, version) for policy, version in found if version is not None}

    def _digest(self, version: int) -> str:
        if version not in self._digests:
            found = version in self.policies.versions(self.policy)
            full = found and self.policies.read_version(self.policy, version).artifact == "weights"
            digest = read_weights(self.policies, self.policy, version).digest if full else ""
            self._digests[version] = digest
        return self._digests[version]

    def _require_own_server(self, version: int, weights: Weights) -> None:
        others = [each.policy for each in self.server.publications if each is not self]
        if others and weights.digest != self.server.weights.digest:
            raise Refused(
                HTTPStatus.CONFLICT,
                f"{self.policy} v{version} has other weights than the policy server, which also "
                f"serves {', '.join(others)}. Policies that share a server are adapters of the "
                f"same weights: publish an adapter, or serve '{self.policy}' with a gateway of its "
                "own.",
            )

    def describe_gone(self, version: int) -> str:
        """Return the sentence on a version that the server does not hold."""
        held = [each for each in self.policies.versions(self.policy) if self.holds(each)]
        return (
            f"The policy server does not hold version {version} of '{self.policy}', to which the "
            f"call is pinned. It holds: {', '.join(map(str, held))}. Start a new attempt, or call "
            f"'{self.policy}' for the current version."
        )
