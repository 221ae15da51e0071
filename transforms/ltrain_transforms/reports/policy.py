"""The report on a policy version and its lineage, from `policies/<name>/v<N>/policy.json`."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ltrain_instrument.quantity import quantity
from ltrain_transforms.datasets import list_datasets
from ltrain_transforms.errors import BadPolicyFile, NothingToShow
from ltrain_transforms.policy_file import (
    POLICY_MANIFEST,
    PolicyVersion,
    list_versions,
    read_lineage,
)
from ltrain_transforms.reports.references import Kind, Reference
from ltrain_transforms.reports.report import (
    Cell,
    Fact,
    Facts,
    Grid,
    Report,
    format_size,
    join_names,
)

IDENTIFIER = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)(?:@(?P<version>[0-9]+))?")
"""The name of a policy or of one version: `sql`, `sql@3`."""


def policy_names(home: Path) -> list[str]:
    """Return the names of the policies below `home`/policies."""
    return sorted({path.parents[1].name for path in home.glob(f"policies/*/v*/{POLICY_MANIFEST}")})


def policy_report(home: Path, name: str, number: int | None) -> Report:
    """Return the report on a version and its ancestors; the default is the served version.

    Raises:
        NothingToShow: when there is no such version, or its `policy.json` cannot be read.
    """
    folder = home / "policies" / name
    versions = list_versions(folder)
    current = current_version(folder)
    wanted = number if number is not None else versions[-1] if current is None else current
    if wanted not in versions:
        raise NothingToShow(
            f"Policy '{name}' has no version {wanted} in {folder}. Choose from: "
            f"{join_names(versions)}."
        )
    try:
        lineage = list(read_lineage(folder, wanted))
    except BadPolicyFile as error:
        raise NothingToShow(str(error)) from error
    own = lineage[0]
    assert isinstance(own, PolicyVersion)
    datasets = {dataset_id: path for path, dataset_id in list_datasets(home)}
    facts = Facts("Version", tuple(_facts(own, current, versions, datasets)))
    files = tuple(
        (name, format_size(file.size), file.sha256[:16]) for name, file in own.files.items()
    )
    parts = (
        facts,
        Grid("Lineage, newest first", LINEAGE, tuple(_row(each, versions) for each in lineage)),
        Grid("Files", ("file", "size", "sha256"), files),
    )
    title = f"policy {name}@{wanted}"
    ancestors = [_to_json(each, versions) for each in lineage]
    data = {"current": current, "versions": versions, "lineage": ancestors}
    return Report(title, str(folder / f"v{wanted}"), parts, data)


def current_version(folder: Path) -> int | None:
    """Return the version of a policy that is served; None if none is."""
    try:
        return int((folder / "current").read_text())
    except (OSError, ValueError):
        return None


LINEAGE = ("version", "parent", "dataset", "recipe", "created (UTC)", "size")


def _row(version: PolicyVersion | int, versions: list[int]) -> tuple[Cell, ...]:
    if isinstance(version, int):
        return (version, None, "removed from this home", None, None, None)
    created = f"{version.created_at:%Y-%m-%d %H:%M}"
    size = format_size(version.size) if version.version in versions else "removed"
    own, parent = (_reference(version, number) for number in (version.version, version.parent))
    dataset = Reference(Kind.DATASET, version.dataset) if version.dataset else None
    return (own, parent, dataset, version.recipe, created, size)


def _reference(policy: PolicyVersion, number: int | None) -> Reference | None:
    """Return a reference to a version of the same policy."""
    if number is None:
        return None
    return Reference(Kind.POLICY, f"{policy.policy}@{number}", str(number))


def _facts(
    own: PolicyVersion, current: int | None, versions: list[int], datasets: dict[str, Path]
) -> Iterator[tuple[str, Fact]]:
    yield "served", "yes" if own.version == current else f"no, version {current} is"
    yield "parent", _reference(own, own.parent) or "none: training starts from it"
    yield "dataset", _dataset_location(own.dataset, datasets)
    yield "recipe", own.recipe or "none"
    yield "created", f"{own.created_at:%Y-%m-%d %H:%M:%S} UTC"
    if own.artifact != "weights":
        yield "artifact", own.artifact + (f" of v{own.base}" if own.base is not None else "")
    yield "size", f"{format_size(own.size)} in {quantity(len(own.files), 'file')}"
    yield "versions", tuple(filter(None, (_reference(own, number) for number in versions)))


def _dataset_location(dataset: str | None, datasets: dict[str, Path]) -> Fact:
    if dataset not in datasets:
        return dataset or "none"
    return Reference(Kind.DATASET, dataset, f"{dataset} in {datasets[dataset]}")


def _to_json(version: PolicyVersion | int, versions: list[int]) -> dict[str, Any]:
    if isinstance(version, int):
        return {"version": version, "removed": True}
    removed = {} if version.version in versions else {"removed": True}
    return version.model_dump() | removed
