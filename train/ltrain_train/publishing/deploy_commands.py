"""`ltrain deploy`: a version answers a share of the users' calls, then all of them or none."""

import json
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console

from ltrain_collector.store import Store
from ltrain_instrument import settings
from ltrain_instrument.errors import LtrainError
from ltrain_train.policy import Deployments, Policies
from ltrain_train.publishing.policy_commands import parse_version
from ltrain_train.publishing.publish import describe_serving, find_gateway
from ltrain_train.publishing.stages import move, require_candidate, user_name
from ltrain_transforms.deployment_file import Stage
from ltrain_transforms.show import print_shown, recipe_or_default
from ltrain_transforms.trials import deployment_report


def start_candidate(identifier: str, share: float, reason: str, *, shadow: bool = False) -> None:
    """Let a version answer a share of the conversations of production, or another share.

    Args:
        shadow: whether nobody sees its answers.
    """
    home = settings.HOME.read()
    policies = Policies(home)
    policy, version = parse_version(policies, identifier)
    policies.verify(policy, version)
    with find_gateway(home, policy) as gateway:
        stage = Stage.SHADOW if shadow else Stage.CANARY
        move(policies, gateway, policy, version, stage, share=share, reason=reason)
    unseen = ", too, and nobody sees its answers" if shadow else ""
    print(
        f"Version {version} of policy '{policy}' answers {share:.4g} of the conversations that "
        f"begin from now on{unseen}. {describe_serving(policy, served=gateway is not None)}"
    )


def promote_candidate(name: str, reason: str) -> None:
    """Make the candidate current."""
    home = settings.HOME.read()
    policies = Policies(home)
    candidate = require_candidate(policies, name)
    before = policies.current(name)
    with find_gateway(home, name) as gateway:
        move(policies, gateway, name, candidate.version, Stage.CURRENT, reason=reason)
    print(
        f"Version {candidate.version} of policy '{name}' is current, previously {before}. "
        f"{describe_serving(name, served=gateway is not None)}"
    )


def stop_candidate(name: str, reason: str) -> None:
    """Take the candidate back: the current version answers all calls."""
    home = settings.HOME.read()
    policies = Policies(home)
    candidate = require_candidate(policies, name)
    with find_gateway(home, name) as gateway:
        move(policies, gateway, name, candidate.version, Stage.RETIRED, reason=reason)
    print(
        f"Version {candidate.version} of policy '{name}' is retired. Version "
        f"{policies.current(name)} answers all calls."
    )


def freeze(name: str, reason: str) -> None:
    """Let the current version answer all calls, and no other one become current."""
    home = settings.HOME.read()
    policies = Policies(home)
    current = policies.current(name)
    with find_gateway(home, name) as gateway:
        if gateway is not None:
            gateway.freeze(name, by=user_name(), reason=reason)
        else:
            Deployments(policies, name).freeze(user_name(), reason)
    print(
        f"Policy '{name}' is frozen: version {current} answers all calls until `ltrain policy "
        f"unfreeze {name}`."
    )


def unfreeze(name: str) -> None:
    """Let other versions become current again."""
    policies = Policies(settings.HOME.read())
    policies.latest(name)
    was_frozen = Deployments(policies, name).thaw()
    print(f"Policy '{name}' {'can change again' if was_frozen else 'was not frozen'}.")


def print_status(
    name: str | None, store: str | None, recipe: Path | None = None, *, as_json: bool
) -> None:
    """Print which versions answer calls, how the last candidate differs, and all stages.

    Args:
        store: the address of the store; None: LTRAIN_STORE.
        recipe: the file with the rule of the trials; None: ltrain.toml, if there is one.
    """
    home = settings.HOME.read()
    policies = Policies(home)
    if name is not None:
        policies.latest(name)
    names = [name] if name is not None else policies.names()
    options = recipe_or_default(recipe)[0].deploy
    with ExitStack() as stack:
        opened = _open(store, stack)
        reports = {each: deployment_report(home, each, options, opened) for each in names}
    if as_json:
        print(json.dumps({each: report.data for each, report in reports.items()}, indent=2))
        return
    if not names:
        print("There is no policy yet; `ltrain serve MODEL` and `ltrain run --model` make one.")
    for report in reports.values():
        print_shown(report, Console())


def _open(store: str | None, stack: ExitStack) -> Store | LtrainError:
    """Return the store, or why it cannot be opened."""
    try:
        return stack.enter_context(Store.open(store, create=False))
    except LtrainError as error:
        return error
