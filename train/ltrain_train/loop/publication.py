"""Makes a version of a policy current: through the gateway that serves the policy, if one runs."""

from collections.abc import Mapping
from pathlib import Path

from opentelemetry.trace import Tracer

from ltrain_instrument import attributes, settings
from ltrain_train.gateway import GatewayClient, gateway_secret
from ltrain_train.loop.retry import retry_publish
from ltrain_train.policy import Policies


def find_gateway(home: Path, policy: str) -> GatewayClient | None:
    """Return a client of the gateway at LTRAIN_GATEWAY if it runs and serves `policy`."""
    client = GatewayClient(settings.GATEWAY.read(), gateway_secret(home))
    if client.served_policy() == policy:
        return client
    client.close()
    return None


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
