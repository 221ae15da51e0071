"""Which policy servers a gateway needs: one for each of the weights that its policies have."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ltrain_instrument.errors import LtrainError
from ltrain_train.gateway.serving.policy_server import Weights, read_weights
from ltrain_train.gateway.serving.publish_choice import PublishChoice
from ltrain_train.gpu import CONTROL_DEVICE
from ltrain_train.policy import BadModel, Policies, read_adapter_config
from ltrain_transforms.artifacts import Publish

_NAMED_UPSTREAM = re.compile(r"([^=:/]+)=(.*)")
NO_RANK = "the gateway was started without --lora-rank"
OPTION = "the gateway was started with --publish {}"
SHARED = "several policies share a server, and merged weights would be those of all"
ON_CPU = "vLLM on a CPU samples slower with an adapter"
"""Why `adapter` or `merged` is published without a trial."""


class SeveralWeights(LtrainError, ValueError):
    """One policy server cannot have the weights of all its policies."""


class BadUpstream(LtrainError, ValueError):
    """An `--upstream` names no URL, or no policy of the gateway."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterOptions:
    """The options on adapters of `ltrain serve`."""

    publish: Publish
    """The form of weights that learners publish."""
    lora_rank: int
    """Largest rank of adapters; 0: only adapters that are current are served."""
    max_adapters: int
    """Adapters of each policy that a server holds at most."""
    required: str = ""
    """Why nothing but adapters can be published; '': merged weights can, too."""


@dataclass(slots=True)
class PlannedServer:
    """One policy server that is needed."""

    weights: Weights
    adapters: AdapterOptions
    upstream: str | None = None
    """URL of the running server that is used; None: vLLM is started."""
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
        if policies.read_version(policy, version).artifact == "adapter":
            self.rank = max(self.rank, read_adapter_config(policies.path(policy, version)).r)

    @property
    def is_shared(self) -> bool:
        """Whether several policies have its weights."""
        return len(self.versions) > 1


def parse_upstreams(texts: Sequence[str], names: Sequence[str]) -> dict[str, str]:
    """Return the URL of the running server of each policy that has one.

    Each text is `POLICY=URL` for one policy, or `URL` for all others.
    """
    own, shared = dict[str, str](), list[str]()
    for text in texts:
        named = _NAMED_UPSTREAM.fullmatch(text)
        policy, url = (named[1], named[2]) if named else ("", text)
        if not url.startswith(("http://", "https://")):
            raise BadUpstream(
                f"--upstream {text}: '{url}' is no URL. Write http://HOST:PORT, or POLICY=URL for "
                "one policy."
            )
        if named is None:
            shared.append(url)
        elif policy not in names:
            raise BadUpstream(
                f"--upstream {text}: the gateway serves no policy '{policy}'. Choose from: "
                f"{', '.join(names)}, or add --policy {policy}."
            )
        elif policy in own:
            raise BadUpstream(f"Two --upstream name a server of policy '{policy}'. Remove one.")
        else:
            own[policy] = url
    if len(shared) > 1:
        raise BadUpstream(
            f"--upstream names several servers for all policies: {', '.join(shared)}. Write "
            "POLICY=URL for each policy."
        )
    return {**dict.fromkeys(names if shared else (), *shared), **own}


def plan_servers(
    policies: Policies,
    names: Sequence[str],
    adapters: AdapterOptions,
    upstreams: Mapping[str, str],
) -> list[PlannedServer]:
    """Return the servers that the current versions of the policies `names` need.

    `upstreams` has the URL of the running server of each policy that has one.
    """
    planned: dict[tuple[str, str | None], PlannedServer] = {}
    for name in names:
        version, url = policies.current(name), upstreams.get(name)
        weights = read_weights(policies, name, version)
        key = (weights.digest, url)
        server = planned.setdefault(key, PlannedServer(weights, adapters, url))
        server.add(policies, name, version)
    for url in set(upstreams.values()):
        groups = [", ".join(each.versions) for each in planned.values() if each.upstream == url]
        if len(groups) > 1:
            raise SeveralWeights(
                f"The policies {'; '.join(groups)} have different weights, and --upstream names "
                f"one server for them: {url}. Name one for each group, as POLICY=URL."
            )
    servers = list(planned.values())
    choice = choose_untried(servers, adapters)
    for server in servers:
        if choice is None or choice.artifact == "adapter" or server.is_shared:
            server.rank = max(server.rank, adapters.lora_rank, bool(adapters.required))
    return servers


def choose_untried(
    servers: Sequence[PlannedServer], adapters: AdapterOptions
) -> PublishChoice | None:
    """Return what learners publish; None: a trial on the first server decides."""
    if adapters.required:
        return PublishChoice("adapter", adapters.required)
    if not servers or not adapters.lora_rank:
        return PublishChoice("merged", NO_RANK)
    if adapters.publish != "auto":
        return PublishChoice(adapters.publish, OPTION.format(adapters.publish))
    if any(server.is_shared for server in servers):
        return PublishChoice("adapter", SHARED)
    if servers[0].upstream is None and not CONTROL_DEVICE.exists():
        return PublishChoice("merged", ON_CPU)
    return None


def prepare_version(
    policies: Policies, name: str, model: Path | None, log: Callable[[str], None]
) -> None:
    """Register the model as version 0 of a new policy, and check the current version."""
    if model is not None:
        policies.register_new(name, model)
    version = policies.current(name)
    policies.verify(name, version)
    if policies.read_version(name, version).artifact == "prompt":
        raise BadModel(f"Policy '{name}' is a prompt, which no server can load. Name a model.")
    if model is not None and version:
        log(f"policy {name} continues with v{version}; '{model}' is used for version 0 only")
