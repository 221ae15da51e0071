"""`ltrain policy`: lists the versions of policies, makes one current, removes and exports them."""

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ltrain_instrument import attributes, settings
from ltrain_instrument.quantity import quantity
from ltrain_train.errors import BadModel, UnknownVersion
from ltrain_train.policy import Policies, require_empty
from ltrain_train.processes import run_lock
from ltrain_train.publishing.publish import describe_serving, find_gateway, promote
from ltrain_train.publishing.retention import (
    VersionScores,
    best_version,
    prune_versions,
    read_scores,
    superfluous_versions,
)
from ltrain_train.store import open_service_provider
from ltrain_transforms.scores import Interval, mean_interval


def list_versions(name: str | None, *, as_json: bool) -> None:
    """Print the versions of one policy, or of all."""
    policies = Policies(settings.HOME.read())
    if name is not None:
        policies.latest(name)
    described = {
        each: _describe_versions(policies, each)
        for each in ([name] if name is not None else policies.names())
    }
    if as_json:
        print(json.dumps(described, indent=2))
    elif not described:
        print("There is no policy yet; `ltrain serve MODEL` and `ltrain run --model` make one.")
    for policy, versions in () if as_json else described.items():
        Console().print(_table(policy, versions))
        print(*_validation_lines(versions), sep="\n", end="")


def use_version(identifier: str) -> None:
    """Make a version current; if a gateway serves the policy, it loads the version first."""
    home = settings.HOME.read()
    policies = Policies(home)
    policy, version = parse_version(policies, identifier)
    before = policies.find_current(policy)
    policies.verify(policy, version)
    with ExitStack() as stack:
        stack.enter_context(run_lock(home, policy=policy))
        gateway = stack.enter_context(find_gateway(home, policy))
        provider = open_service_provider("ltrain-loop", home)
        stack.callback(provider.shutdown)
        tracer = provider.get_tracer(attributes.SCOPE_LEARNER)
        promote(policies, policy, version, gateway, tracer)
    served = describe_serving(policy, served=gateway is not None)
    previously = "" if before is None else f", previously {before}"
    print(f"Version {version} of policy '{policy}' is current{previously}. {served}")


def remove_versions(name: str, *, keep: int, yes: bool) -> None:
    """Remove the versions that are not kept, or only count them without `yes`."""
    home = settings.HOME.read()
    policies = Policies(home)
    policies.latest(name)
    runs = home / "runs"
    if not yes:
        versions = superfluous_versions(policies, name, runs, keep=keep)
        size = sum(policies.read_version(name, version).size for version in versions)
        print(f"{_count(versions)} would be removed ({size / 1e6:.1f} MB, and checkpoints).")
        print("Nothing was removed; add --yes to remove these versions.", file=sys.stderr)
        return
    with run_lock(home, policy=name):
        removal = prune_versions(policies, name, runs, keep=keep)
    kept = ", ".join(map(str, policies.versions(name)))
    print(
        f"{_count(removal.versions)} removed, {removal.freed / 1e6:.1f} MB freed. Versions of "
        f"'{name}' now: {kept}."
    )


def add_version(name: str, source: Path, *, parent: int | None) -> None:
    """Copy a model, an adapter or a prompt as the next version of a policy."""
    if not source.exists():
        raise BadModel(
            f"There is no '{source}'. Name a model in Hugging Face layout, an adapter in PEFT's "
            "layout, or the text file of a prompt."
        )
    home = settings.HOME.read()
    policies = Policies(home)
    with run_lock(home, policy=name):
        if policies.versions(name):
            version = policies.add(name, source, parent=parent)
        else:
            version = policies.register(name, source)
    artifact = policies.read_version(name, version).artifact
    state = f"Make it current with `ltrain policy use {name}@{version}`."
    if policies.find_current(name) == version:
        state = "It is current."
    print(f"Version {version} of policy '{name}' is added ({artifact}). {state}")


def export_version(identifier: str, out: Path, *, merged: bool) -> None:
    """Copy a version to `out`, or write an adapter and its base as one model."""
    policies = Policies(settings.HOME.read())
    policy, version = parse_version(policies, identifier)
    if merged and policies.read_version(policy, version).artifact == "adapter":
        from ltrain_train.learner import merge_adapter  # its import of torch takes seconds

        require_empty(out)
        adapter = policies.verify(policy, version)
        merge_adapter(policies.weights_path(policy, version), adapter, out)
        size = sum(file.stat().st_size for file in out.iterdir())
    else:
        size = policies.export(policy, version, out)
    print(f"Version {version} of policy '{policy}' is exported to {out} ({size / 1e6:.1f} MB).")


def parse_version(
    policies: Policies, identifier: str, *, default_current: bool = False
) -> tuple[str, int]:
    """Return the policy and the version that NAME@VERSION names.

    Args:
        default_current: whether NAME and NAME@current name the policy's current version.

    Raises:
        UnknownVersion: when it names no version.
    """
    name, at, number = identifier.partition("@")
    if default_current and number in ("", "current"):
        return name, policies.current(name)
    if not (at and number.isascii() and number.isdigit()):
        versions = ", ".join(map(str, policies.versions(name))) or "none"
        raise UnknownVersion(
            f"'{identifier}' does not name a version. Write NAME@VERSION, such as sql@3. Versions "
            f"of '{name}': {versions}."
        )
    policies.path(name, int(number))
    return name, int(number)


def _describe_versions(policies: Policies, name: str) -> list[dict[str, Any]]:
    """Return a description of each version of a policy, as JSON."""
    scores = read_scores(policies.directory.parent / "runs", name)
    versions, current = policies.versions(name), policies.find_current(name)
    best = best_version(scores, versions)
    described = []
    for version in versions:
        manifest = policies.read_version(name, version)
        score = scores.get(version, VersionScores())
        interval = mean_interval([*score.tasks.values()])
        described.append(
            {
                "version": version,
                "artifact": manifest.artifact,
                "base": manifest.base if manifest.artifact == "adapter" else None,
                "parent": manifest.parent,
                "validation": score.validation,
                "interval": [interval.low, interval.high] if interval else None,
                "rollouts": score.rollouts,
                "failed": score.failed,
                "training": score.training,
                "dataset": manifest.dataset,
                "created": manifest.created,
                "created_at": f"{manifest.created_at:%Y-%m-%d %H:%M}",
                "size": manifest.size,
                "current": version == current,
                "best": version == best,
            }
        )
    return described


def _table(policy: str, versions: list[dict[str, Any]]) -> Table:
    """Return a table of the versions, without the columns that are empty in all rows.

    It fits into 80 columns; in less, cells are folded.
    """
    table = Table(title=f"Policy {policy}", title_justify="left", box=None)
    table.padding, table.pad_edge = (0, 1, 0, 0), False
    rows = [_cells(each) for each in versions]
    names = [name for name in rows[0] if any(row[name] for row in rows)]
    for name in names:
        right = name in ("val", "train", "size")
        table.add_column(name, justify="right" if right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(row[name] for name in names))
    return table


def _cells(version: dict[str, Any]) -> dict[str, str]:
    """Return the cells of a version by the name of their column."""
    marks = [mark for mark in ("current", "best") if version[mark]]
    scores = {"val": version["validation"], "train": version["training"]}
    return {
        "version": " ".join([f"v{version['version']}", *marks]),
        "artifact": "" if version["artifact"] == "weights" else version["artifact"],
        "from": "" if version["parent"] is None else f"v{version['parent']}",
        **{name: "" if score is None else f"{score:.3f}" for name, score in scores.items()},
        "dataset": version["dataset"] or "",
        "made (UTC)": version["created_at"].partition("-")[2],
        "size": _format_size(version["size"]),
    }


def _validation_lines(versions: list[dict[str, Any]]) -> Iterator[str]:
    """Yield a line for each validated version: its score, the interval and the rollouts."""
    validated = [each for each in versions if each["validation"] is not None]
    if validated:
        yield "Validation, mean [95 % interval over tasks]:"
    for each in validated:
        low_high = each["interval"]
        interval = f" {Interval(*low_high)}" if low_high else ""
        failed = f", {each['failed']} failed" if each["failed"] else ""
        score = f"{each['validation']:.3f}{interval}"
        yield f"v{each['version']}: {score}, {quantity(each['rollouts'], 'rollout')}{failed}"
    yield ""


def _format_size(size: int) -> str:
    number, unit = (size / 1e6, "MB") if size < 1e9 else (size / 1e9, "GB")
    return f"{number:.{0 if number >= 100 else 1}f} {unit}"


def _count(versions: list[int]) -> str:
    names = f" ({', '.join(f'v{version}' for version in versions)})" if versions else ""
    return f"{quantity(len(versions), 'version')}{names}"
