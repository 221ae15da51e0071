"""Which policy servers a gateway needs: one for each of the weights that its policies have."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ltrain_instrument.errors import LtrainError
from ltrain_train.gateway.serving.policy_server import Weights, read_weights
from ltrain_train.policy import BadModel, Policies, read_adapter_config
from ltrain_transforms.artifacts import Publish


class SeveralWeights(LtrainError, ValueError):
    """One policy server cannot have the weights of all policies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterOptions:
    """The options on adapters of `ltrain serve`."""

    publish: Publish
    """What learners publish."""
    lora_rank: int
    """Largest rank of adapters; 0: only adapters that are current are served."""
    max_adapters: int
    """Adapters of each policy that a server holds at most."""


@dataclass(slots=True)
class PlannedServer:
    """One policy server that is needed."""

    weights: Weights
    adapters: AdapterOptions
    versions: dict[str, int] = field(default_factory=dict)
    """The version of each policy that it serves first."""
    rank: int = 0
    """Largest rank of its adapters; 0: it takes none."""

    @property
    def max_adapters(self) -> int:
        """Adapters that it holds at most."""
        return self.adapters.max_adapters * len(self.versions) if self.rank else 0

    def add(self, policies: Policies, policy: str, version: int) -> None:
        """Add a policy whose version has the server's weights."""
        self.versions[policy] = version
        if self.adapters.publish != "merged" or len(self.versions) > 1:
            self.rank = max(self.rank, self.adapters.lora_rank)
        if policies.read_version(policy, version).artifact == "adapter":
            self.rank = max(self.rank, read_adapter_config(policies.path(policy, version)).r)


def plan_servers(
    policies: Policies, names: Sequence[str], adapters: AdapterOptions
) -> list[PlannedServer]:
    """Return the servers that the current versions of the policies need.

    Raises:
        UnknownVersion: when a policy has no current version.
    """
    planned: dict[str, PlannedServer] = {}
    for name in names:
        version = policies.current(name)
        weights = read_weights(policies, name, version)
        server = planned.setdefault(weights.digest, PlannedServer(weights, adapters))
        server.add(policies, name, version)
    return list(planned.values())


def require_one_server(servers: Sequence[PlannedServer]) -> None:
    """Check that one server has the weights of all policies.

    Raises:
        SeveralWeights: when it has not.
    """
    if len(servers) > 1:
        groups = "; ".join(", ".join(server.versions) for server in servers)
        raise SeveralWeights(
            "The policies have different weights, and --upstream names one server. Start a gateway "
            f"for each group: {groups}."
        )


def prepare_version(
    policies: Policies, name: str, model: Path | None, log: Callable[[str], None]
) -> None:
    """Register the model as version 0 of a new policy, and check the current version.

    Raises:
        BadModel: when the model or the version is incomplete, or is a prompt.
        UnknownVersion: when there is neither a model nor a version.
    """
    if model is not None and not policies.versions(name):
        policies.register(name, model)
    version = policies.current(name)
    policies.verify(name, version)
    if policies.read_version(name, version).artifact == "prompt":
        raise BadModel(f"Policy '{name}' is a prompt, which no server can load. Name a model.")
    if model is not None and version:
        log(f"policy {name} continues with v{version}; '{model}' is used for version 0 only")
