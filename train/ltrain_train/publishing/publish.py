"""Makes a version of a policy current: through the gateway that serves the policy, if one runs."""

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from opentelemetry.trace import Tracer

from ltrain_instrument import attributes, settings
from ltrain_train.errors import NotReachable
from ltrain_train.gateway import GatewayClient, gateway_secret
from ltrain_train.policy import Policies
from ltrain_train.runs import GATEWAY_START_TIMEOUT, is_starting, retry_publish
from ltrain_transforms.policy_lineage import write_ledger
from ltrain_transforms.recipe import Recipe

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
    with closing(GatewayClient(settings.GATEWAY.read(), gateway_secret(home))) as client:
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


def publishes_adapters(recipe: Recipe, policy: str, gateway: GatewayClient | None) -> bool:
    """Return whether a new version is an adapter, and not merged weights."""
    if not recipe.train.lora_rank:
        return False
    if gateway is None:
        return recipe.serve.publish == "adapter"
    return gateway.publish_choice(policy).artifact == "adapter"


@dataclass(frozen=True, slots=True)
class TrainedVersion:
    """Where a new version comes from."""

    policy: str
    parent: int
    """The version that training started from."""
    dataset: str
    """Id of the dataset."""
    recipe: str
    """Digest of the recipe."""
    base: int | None
    """The version whose weights an adapter, or the checkpoint, is added to."""
    checkpoint: Path | None = None
    """The learner's checkpoint of the new version."""


def publish_draft(
    policies: Policies,
    draft: Path,
    version: TrainedVersion,
    rollouts: Iterable[str],
    gateway: GatewayClient | None,
    tracer: Tracer,
) -> int:
    """Publish a trained artifact as the policy's next version, and return its number.

    Args:
        draft: directory of the artifact, which becomes the version.
        rollouts: the rollouts that it was trained on, for its ledger.
        gateway: as in `publish_version`.
    """
    write_ledger(draft, rollouts)
    new = policies.publish_files(
        version.policy,
        draft,
        parent=version.parent,
        dataset=version.dataset,
        recipe=version.recipe,
        base=version.base,
        checkpoint=version.checkpoint,
    )
    origin = {attributes.DATASET_ID: version.dataset, attributes.RECIPE_DIGEST: version.recipe}
    publish_version(policies, version.policy, new, gateway, tracer, origin=origin)
    return new


def publish_version(
    policies: Policies,
    policy: str,
    version: int,
    gateway: GatewayClient | None,
    tracer: Tracer,
    origin: Mapping[str, str] | None = None,
) -> None:
    """Make a version current, and record that as a span.

    Args:
        gateway: it loads the version first; None: no gateway serves the policy.
        origin: further attributes of the span.

    Raises:
        UnknownVersion: when the version does not exist.
        GatewayRefused: when the version cannot be served.
    """
    policies.path(policy, version)
    span_attributes: dict[str, str | int] = {
        attributes.POLICY_NAME: policy,
        attributes.POLICY_VERSION: version,
        **(origin or {}),
    }
    with tracer.start_as_current_span(attributes.SPAN_PUBLISH, attributes=span_attributes):
        if gateway is not None:
            retry_publish(lambda: gateway.publish(policy, version))
        else:
            policies.set_current(policy, version)
