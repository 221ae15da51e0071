"""A new version is registered; a version is promoted: a gateway loads it, then it is current."""

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from opentelemetry.trace import Tracer

from ltrain_instrument import attributes, settings
from ltrain_train.errors import BadRun, NotReachable
from ltrain_train.gateway import GatewayClient
from ltrain_train.policy import Deployments, Policies, SharedWeights
from ltrain_train.publishing.stages import first_trial, move
from ltrain_train.runs import GATEWAY_START_TIMEOUT, is_starting, retry_load
from ltrain_train.store import home_secret
from ltrain_transforms.deployment_file import Stage
from ltrain_transforms.policy_lineage import write_ledger
from ltrain_transforms.recipe import Deploy, Gates, Recipe

_logger = logging.getLogger("ltrain.loop")


@contextmanager
def find_gateway(
    home: Path, policy: str, timeout: float = GATEWAY_START_TIMEOUT
) -> Iterator[GatewayClient | None]:
    """Yield a client of the gateway at LTRAIN_GATEWAY if it serves `policy`, else None.

    Args:
        timeout: seconds to wait for a gateway that is starting.

    Raises:
        NotReachable: when its port is open, but it does not answer in that time.
    """
    with closing(GatewayClient(settings.GATEWAY.read(), home_secret(home))) as client:
        yield client if policy in _read_served_policies(client, timeout) else None


def _read_served_policies(client: GatewayClient, timeout: float) -> list[str]:
    health = f"{client.url}/health"
    if not is_starting(health):
        return client.served_policies()
    _logger.warning(
        "ltrain: waiting for the gateway, at most %.0f s: its port is open, but it does not "
        "answer yet",
        timeout,
    )
    served = client.served_policies(timeout)
    if not served and is_starting(health):
        raise NotReachable(
            f"The gateway at {client.url} does not answer within {timeout:.0f} s, but its port is "
            "open. Run the same command again when `ltrain serve` is ready, or stop the program "
            "that listens there."
        )
    return served


def describe_serving(policy: str, *, served: bool) -> str:
    """Return the sentence on whether a gateway serves the policy."""
    if served:
        return "The gateway serves it."
    return f"No gateway serves the policy now. Serve it with `ltrain serve --policy {policy}`."


def registers_adapters(recipe: Recipe, policy: str, gateway: GatewayClient | None) -> bool:
    """Return whether a new version is an adapter, and not merged weights.

    Raises:
        BadRun: when it is not, and `[deploy]` makes it a canary, which must be one.
    """
    as_adapter = bool(recipe.train.lora_rank) and _publishes_adapters(recipe, policy, gateway)
    if recipe.deploy.share and not as_adapter:
        raise BadRun(
            f"share of [deploy] lets a version of '{policy}' answer calls beside the current one, "
            "but it would be merged weights, of which the server holds one version. Set publish = "
            '"adapter" in [serve], or share = 0.'
        )
    return as_adapter


def _publishes_adapters(recipe: Recipe, policy: str, gateway: GatewayClient | None) -> bool:
    if gateway is None:
        return recipe.serve.publish == "adapter"
    return retry_load(partial(gateway.publish_choice, policy)).artifact == "adapter"


@dataclass(frozen=True, slots=True)
class TrainedVersion:
    """The origin of a new version."""

    policy: str
    parent: int
    """The version at the start of training."""
    dataset: str
    """Id of the dataset."""
    recipe: str
    """Digest of the recipe."""
    base: int | None
    """The version whose weights the adapter, or the checkpoint, needs."""
    checkpoint: Path | None = None
    """The learner's checkpoint of the new version."""

    @property
    def origin(self) -> dict[str, str]:
        """The attributes of the dataset and the recipe."""
        return {attributes.DATASET_ID: self.dataset, attributes.RECIPE_DIGEST: self.recipe}


def register(
    policies: Policies, draft: Path, version: TrainedVersion, rollouts: Iterable[str]
) -> int:
    """Write a trained artifact as the policy's next version, and return its number.

    Args:
        draft: directory of the artifact, which becomes the version.
        version: its origin.
        rollouts: the rollouts that it was trained on, for its ledger.
    """
    write_ledger(draft, rollouts)
    return policies.register_files(
        version.policy,
        draft,
        parent=version.parent,
        dataset=version.dataset,
        recipe=version.recipe,
        base=version.base,
        checkpoint=version.checkpoint,
    )


def publish(
    policies: Policies,
    policy: str,
    version: int,
    deploy: Deploy,
    gateway: GatewayClient | None,
    tracer: Tracer,
    origin: Mapping[str, str],
    shared: SharedWeights | None = None,
) -> None:
    """Make a new version current; if `deploy` has a share, its first stage on trial.

    The other arguments are those of `promote`, with the same errors.
    """
    if not deploy.share:
        promote(policies, policy, version, gateway, tracer, origin, shared)
        return
    stage, share = first_trial(deploy), deploy.share
    if deploy.gates != Gates():
        stage, share = Stage.CANDIDATE, 0.0
    reason = f"trained on dataset {origin[attributes.DATASET_ID]}"
    step = partial(move, policies, gateway, policy, version, stage, share=share)
    retry_load(lambda: step(by="ltrain", reason=reason))


def promote(
    policies: Policies,
    policy: str,
    version: int,
    gateway: GatewayClient | None,
    tracer: Tracer,
    origin: Mapping[str, str] | None = None,
    shared: SharedWeights | None = None,
) -> None:
    """Make a version current, after the gateway has loaded it, and record that as a span.

    Args:
        gateway: it serves the policy; None: none does.
        tracer: records the span.
        origin: further attributes of the span.
        shared: the memory of a learner that has the version's weights, too.

    Raises:
        UnknownVersion: when the version does not exist.
        BadDeployment: when the policy is frozen.
        GatewayRefused: when the version cannot be served.
    """
    policies.path(policy, version)
    deployments = Deployments(policies, policy)
    if version != policies.find_current(policy):
        deployments.require_thawed()
    span_attributes: dict[str, str | int] = {
        attributes.POLICY_NAME: policy,
        attributes.POLICY_VERSION: version,
        **(origin or {}),
    }
    with tracer.start_as_current_span(attributes.SPAN_PUBLISH, attributes=span_attributes):
        if gateway is not None:
            retry_load(lambda: gateway.load(policy, version, shared=shared))
        else:
            policies.promote(policy, version)
            if (candidate := deployments.candidate()) is not None:
                deployments.record(candidate.end(version, by="ltrain"))
