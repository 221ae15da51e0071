"""The report on a policy version and its lineage, from `policies/<name>/v<N>/policy.json`."""

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import stdev
from typing import Any

from ltrain_instrument.quantity import quantity
from ltrain_transforms.datasets import list_datasets
from ltrain_transforms.errors import BadPolicyFile, NothingToShow
from ltrain_transforms.policy_file import (
    POLICY_MANIFEST,
    PolicyVersion,
    find_version,
    list_versions,
    read_lineage,
    read_version,
)
from ltrain_transforms.reports.references import Kind, Reference
from ltrain_transforms.reports.report import (
    NORMAL_95,
    Cell,
    Chart,
    Command,
    Fact,
    Facts,
    Graph,
    Grid,
    Node,
    Part,
    Report,
    format_size,
    intervals,
    join_names,
)
from ltrain_transforms.reports.run_state import held_out_scores

MAX_NODES = 60
"""Versions in the graph of a policy: the latest."""
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
    scores = _scores(home, name)
    parts: tuple[Part, ...] = (
        facts,
        Graph("Versions", tuple(_nodes(folder, versions, wanted, current, scores))),
        *_score_chart(scores),
        Facts("Commands", tuple(_commands(f"{name}@{wanted}"))),
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


Scores = dict[int, tuple[float, float | None]]
"""The held-out score of each version, and the margin of its 95 % interval over tasks; None of less
than two tasks."""


def _scores(home: Path, policy: str) -> Scores:
    found = held_out_scores(home, policy)
    return {
        version: (own.score, _margin(list(own.tasks.values())))
        for version, own in sorted(found.items())
        if own.score is not None
    }


def _margin(tasks: Sequence[float]) -> float | None:
    return NORMAL_95 * stdev(tasks) / len(tasks) ** 0.5 if len(tasks) > 1 else None


def _score_chart(scores: Scores) -> Iterator[Chart]:
    if len(scores) < 2:
        return
    points = tuple((number, score) for number, (score, _) in scores.items())
    band = intervals((number, *score) for number, score in scores.items())
    series = (("score", points),)
    yield Chart("Held-out score, 95 % interval", "version", "score", series, bands={"score": band})


def _nodes(
    folder: Path, versions: Sequence[int], wanted: int, current: int | None, scores: Scores
) -> Iterator[Node]:
    """Yield the latest versions of the folder, the oldest first; a branch has a lane of its own."""
    known = range(max(versions) + 1)[-MAX_NODES:]
    lanes, places, parents = dict[int, int](), dict[int, int](), set[int]()
    for number in known:
        found = find_version(folder, number)
        if found is None:
            continue
        with suppress(BadPolicyFile):  # the page of the version has the error
            parent = read_version(found / POLICY_MANIFEST).parent
            if parent is None or parent in parents or parent not in lanes:
                lanes[number] = max(lanes.values(), default=-1) + 1
            else:
                lanes[number] = lanes[parent]
            places[number] = len(places)
            if parent is not None:
                parents.add(parent)
            is_there = number in versions
            yield Node(
                str(number),
                Reference(Kind.POLICY, f"{folder.name}@{number}") if is_there else None,
                None if parent is None else places.get(parent),
                lanes[number],
                number == wanted,
                ", ".join(_notes(number, is_there, number == current, scores)),
            )


def _notes(number: int, is_there: bool, is_served: bool, scores: Scores) -> Iterator[str]:
    yield f"v{number}"
    if not is_there:
        yield "removed"
    if is_served:
        yield "served"
    if number in scores:
        score, margin = scores[number]
        yield f"score {score:.3f}" + ("" if margin is None else f" ±{margin:.3f}")


def _commands(version: str) -> Iterator[tuple[str, Fact]]:
    """Yield what a reader does with a version, as a command."""
    yield "serve it", Command(f"ltrain policy use {version}")
    yield (
        "train from it",
        Command(f"ltrain policy use {version} && ltrain run ltrain.toml --from-clickhouse"),
    )
    yield "export it", Command(f"ltrain policy export {version} {version.replace('@', '-')}")


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
