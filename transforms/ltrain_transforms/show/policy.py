"""A policy version with its lineage, read from `policies/<name>/v<N>/policy.json` of a home."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ltrain_transforms.errors import NothingToShow
from ltrain_transforms.policy_file import POLICY_MANIFEST, PolicyVersion
from ltrain_transforms.show.dataset import of_home
from ltrain_transforms.show.report import Cell, Facts, Grid, Report, named, size

SPELLING = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)(?:@(?P<version>[0-9]+))?")
"""A policy, or one version of it: `sql`, `sql@3`."""


def names(home: Path) -> list[str]:
    """Give the policies of a home."""
    return sorted({path.parents[1].name for path in home.glob(f"policies/*/v*/{POLICY_MANIFEST}")})


def report(home: Path, name: str, number: int | None) -> Report:
    """Tell of a version, by default the one that is served, back to where it came from.

    Raises:
        NothingToShow: when there is no such version, or its `policy.json` cannot be read.
    """
    folder = home / "policies" / name
    there = versions(folder)
    current = _current(folder)
    wanted = number if number is not None else there[-1] if current is None else current
    if wanted not in there:
        raise NothingToShow(
            f"Policy '{name}' has no version {wanted} in {folder}. Versions: {named(there)}."
        )
    line = list(_lineage(folder, wanted, there))
    own = line[0]
    assert isinstance(own, PolicyVersion)
    datasets = {one: path for path, one in of_home(home)}
    facts = Facts("Version", tuple(_facts(own, current, there, datasets)))
    files = tuple((name, size(file.size), file.sha256[:16]) for name, file in own.files.items())
    parts = (
        facts,
        Grid("Lineage, back to where it came from", LINEAGE, tuple(map(_row, line))),
        Grid("Files", ("file", "size", "sha256"), files),
    )
    title = f"policy {name}@{wanted}"
    data = {"current": current, "versions": there, "lineage": [_plain(one) for one in line]}
    return Report(title, str(folder / f"v{wanted}"), parts, data)


def versions(folder: Path) -> list[int]:
    """Give a policy's versions, oldest first."""
    found = (path.parent.name[1:] for path in folder.glob(f"v*/{POLICY_MANIFEST}"))
    return sorted(int(number) for number in found if number.isdigit())


def _lineage(folder: Path, number: int, there: list[int]) -> Iterator[PolicyVersion | int]:
    """Follow the parents; a parent that was removed is given by its number, and is the end."""
    seen: set[int] = set()
    following: int | None = number
    while following is not None and following not in seen:
        seen.add(following)
        if following not in there:
            yield following
            return
        version = _read(folder / f"v{following}" / POLICY_MANIFEST)
        yield version
        following = version.parent


def _read(path: Path) -> PolicyVersion:
    try:
        return PolicyVersion.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        first = str(error).splitlines()[0]
        raise NothingToShow(
            f"{path} cannot be read as docs/policies.md has it ({first}). Publish the version "
            "again, or remove its folder."
        ) from error


def _current(folder: Path) -> int | None:
    try:
        return int((folder / "current").read_text())
    except (OSError, ValueError):
        return None


LINEAGE = ("version", "parent", "dataset", "recipe", "created (UTC)", "size")


def _row(one: PolicyVersion | int) -> tuple[Cell, ...]:
    if isinstance(one, int):
        return (one, None, "removed from this home", None, None, None)
    created = f"{one.created_at:%Y-%m-%d %H:%M}"
    return (one.version, one.parent, one.dataset, one.recipe, created, size(one.size))


def _facts(
    own: PolicyVersion, current: int | None, there: list[int], datasets: dict[str, Path]
) -> Iterator[tuple[str, str]]:
    yield "served", "yes" if own.version == current else f"no, version {current} is"
    yield "parent", "none: training starts from it" if own.parent is None else str(own.parent)
    yield "dataset", _place(own.dataset, datasets)
    yield "recipe", own.recipe or "none"
    yield "created", f"{own.created_at:%Y-%m-%d %H:%M:%S} UTC"
    yield "size", f"{size(own.size)} in {len(own.files)} file(s)"
    yield "versions", named(there)


def _place(dataset: str | None, datasets: dict[str, Path]) -> str:
    if dataset is None:
        return "none"
    return f"{dataset} in {datasets[dataset]}" if dataset in datasets else dataset


def _plain(one: PolicyVersion | int) -> dict[str, Any]:
    return {"version": one, "removed": True} if isinstance(one, int) else one.model_dump()
