"""`ltrain deploy`: a version answers a share of the users' calls, then all of them or none."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from math import isfinite
from typing import Any

from rich.console import Console
from rich.table import Table

from ltrain_collector.store import Store
from ltrain_instrument import settings
from ltrain_instrument.errors import LtrainError
from ltrain_train.policy import Deployments, Policies
from ltrain_train.publishing.policy_commands import parse_version
from ltrain_train.publishing.publish import describe_serving, find_gateway
from ltrain_train.publishing.stages import move, require_candidate, user_name
from ltrain_transforms.deployment_file import Deployment, Stage, find_freeze, read_deployments
from ltrain_transforms.trials import Metric, compare, read_metrics

ALPHA = 0.05
"""The probability with which each bound of a difference fails at some time."""


def start_candidate(identifier: str, share: float, reason: str) -> None:
    """Let a version answer a share of the conversations of production, or another share."""
    home = settings.HOME.read()
    policies = Policies(home)
    policy, version = parse_version(policies, identifier)
    policies.verify(policy, version)
    with find_gateway(home, policy) as gateway:
        move(policies, gateway, policy, version, Stage.CANARY, share=share, reason=reason)
    print(
        f"Version {version} of policy '{policy}' answers {share:.4g} of the conversations that "
        f"begin from now on. {describe_serving(policy, served=gateway is not None)}"
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


def print_status(name: str | None, store: str | None, *, as_json: bool) -> None:
    """Print which versions answer calls, how the last candidate differs, and all stages.

    Args:
        store: the address of the store; None: LTRAIN_STORE.
    """
    policies = Policies(settings.HOME.read())
    if name is not None:
        policies.latest(name)
    names = [name] if name is not None else policies.names()
    if as_json:
        described = {each: _describe(policies, each, store) for each in names}
        print(json.dumps(described, indent=2))
        return
    if not names:
        print("There is no policy yet; `ltrain serve MODEL` and `ltrain run --model` make one.")
    for each in names:
        print(*_status_lines(policies, each), sep="\n")
        if stages := read_deployments(policies.directory / each):
            _print_metrics(stages[-1], store)
            Console().print(_table(stages))


def _describe(policies: Policies, name: str, store: str | None) -> dict[str, Any]:
    folder = policies.directory / name
    frozen, stages = find_freeze(folder), read_deployments(folder)
    return {
        "current": policies.find_current(name),
        "frozen": None if frozen is None else frozen.model_dump(),
        "stages": [each.model_dump() for each in stages],
        **(_describe_trial(stages[-1], store) if stages else {}),
    }


def _describe_trial(deployment: Deployment, store: str | None) -> dict[str, Any]:
    try:
        return {"metrics": [_metric(each) for each in _read_metrics(deployment, store)]}
    except LtrainError as error:
        return {"metrics": None, "fault": str(error)}


def _metric(metric: Metric) -> dict[str, Any]:
    """Return a metric as JSON; a bound that is not known yet is null."""
    found = compare(metric.candidate, metric.current, ALPHA)
    figures = {
        "candidate": metric.candidate.mean,
        "current": metric.current.mean,
        "difference": found.mean,
        "lower": found.lower,
        "upper": found.upper,
    }
    finite = {key: float(x) if isfinite(x) else None for key, x in figures.items()}
    units = [int(arm.units) for arm in (metric.candidate, metric.current)]
    return {"metric": metric.name, "units": units, **finite}


def _read_metrics(deployment: Deployment, store: str | None) -> list[Metric]:
    with Store.open(store, create=False) as opened:
        return read_metrics(opened, deployment.experiment)


def _print_metrics(deployment: Deployment, store: str | None) -> None:
    """Print how a candidate and the current version differ, as far as the store knows."""
    try:
        metrics = _read_metrics(deployment, store)
    except LtrainError as error:
        print(f"The versions cannot be compared, because the store cannot be read: {error}")
        return
    if not metrics:
        print("No call of the trial has arrived in the store yet.")
        return
    table = Table(box=None, pad_edge=False, header_style="")
    for column in ("metric", f"v{deployment.version}", "current", "difference", "90 % at any time"):
        table.add_column(column)
    table.add_column("units", justify="right")
    for each in map(_metric, metrics):
        bounds = "not known yet"
        if each["lower"] is not None:
            bounds = f"[{each['lower']:+.4g}, {each['upper']:+.4g}]"
        means = (_number(each[arm]) for arm in ("candidate", "current", "difference"))
        table.add_row(each["metric"], *means, bounds, " and ".join(map(str, each["units"])))
    Console().print(table)


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.4g}"


def _status_lines(policies: Policies, name: str) -> Iterator[str]:
    folder = policies.directory / name
    yield f"Policy {name}: v{policies.find_current(name)} is current"
    if (frozen := find_freeze(folder)) is not None:
        reason = f": {frozen.reason}" if frozen.reason else ""
        yield f"It is frozen by {frozen.by} since {_time(frozen.at)} UTC{reason}"
    candidate = Deployments(policies, name).candidate()
    if candidate is None:
        yield "No version is a candidate."
    elif not candidate.serves:
        yield f"v{candidate.version} is {candidate.describe()}"
    else:
        yield (
            f"v{candidate.version} is {candidate.describe()} that began after "
            f"{_time(candidate.began)} UTC, experiment {candidate.experiment}"
        )


def _table(stages: list[Deployment]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="")
    for column in ("time (UTC)", "version", "stage", "share", "by", "reason"):
        table.add_column(column)
    for each in stages:
        share = f"{each.share:.4g}" if each.serves else ""
        cells = (_time(each.at), f"v{each.version}", each.stage, share, each.by, each.reason)
        table.add_row(*cells)
    return table


def _time(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S}"
