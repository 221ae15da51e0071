"""A version moves to a stage, at the gateway that serves its policy or on disk."""

import getpass
from contextlib import suppress
from typing import Any

from ltrain_train.gateway import GatewayClient
from ltrain_train.policy import Deployments, Policies
from ltrain_transforms.deployment_file import Deployment, Stage
from ltrain_transforms.errors import BadDeployment
from ltrain_transforms.recipe import Deploy


def move(
    policies: Policies,
    gateway: GatewayClient | None,
    policy: str,
    version: int,
    stage: Stage,
    *,
    share: float = 0.0,
    by: str | None = None,
    reason: str,
) -> None:
    """Move a version to a stage: at the gateway that serves the policy, else on disk.

    Args:
        by: the program that decided it; None: the person who typed the command.
    """
    step: dict[str, Any] = {"share": share, "by": by or user_name(), "reason": reason}
    if gateway is not None:
        gateway.deploy(policy, version, stage, **step)
        return
    deployments = Deployments(policies, policy)
    planned = deployments.plan(version, stage, **step)
    if planned.makes_current is not None:
        policies.promote(policy, planned.makes_current)
    deployments.record(planned)


def first_trial(deploy: Deploy) -> Stage:
    """Return the stage in which a version that passed its gates answers first."""
    return Stage.SHADOW if deploy.shadow else Stage.CANARY


def require_candidate(policies: Policies, name: str) -> Deployment:
    """Return the candidate of a policy.

    Raises:
        BadDeployment: when it has none.
    """
    policies.latest(name)
    candidate = Deployments(policies, name).candidate()
    if candidate is None:
        raise BadDeployment(
            f"Policy '{name}' has no candidate. Start one with `ltrain deploy start "
            f"{name}@{policies.latest(name)} --share 0.1`."
        )
    return candidate


def user_name() -> str:
    """Return the name of the person who types the command."""
    with suppress(OSError, KeyError):  # the user id has no name
        return getpass.getuser()
    return "unknown"
