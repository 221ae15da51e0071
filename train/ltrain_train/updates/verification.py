"""Compares policy versions, checkpoints and datasets with their manifests, and with the store.

A dataset is also built again from the store, by its own recipe, and compared by its id.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ltrain_collector.store import Store
from ltrain_instrument import settings
from ltrain_instrument.errors import LtrainError
from ltrain_instrument.files import temporary_directory
from ltrain_instrument.instrumentors import Finding, State, is_healthy
from ltrain_instrument.quantity import quantity
from ltrain_train.learner import check_files
from ltrain_train.policy import Policies
from ltrain_train.publishing import parse_version
from ltrain_train.updates.retraining import compare_retraining, read_lineage_of
from ltrain_transforms.datasets import Dataset, build, list_datasets
from ltrain_transforms.file_digests import find_damage
from ltrain_transforms.policy_file import (
    LEDGER,
    POLICY_MANIFEST,
    REMOVED,
    PolicyVersion,
    read_version,
)
from ltrain_transforms.recipe import Recipe
from ltrain_transforms.rendering import ServedPolicy

SELECTED = ("run", "wave", "groups", "since", "ended_before")
"""The parameters of a dataset's query that are arguments of its build."""


def verify_version(
    identifier: str, store: str | None, *, retrain: bool = False
) -> Iterator[Finding]:
    """Yield what is found of a version: its files, its checkpoint, its dataset and a new build.

    Args:
        identifier: NAME@VERSION.
        store: address of the store; None: LTRAIN_STORE.
        retrain: also repeat the update on the dataset, and compare the weights.

    Raises:
        UnknownVersion: when there is no such version.
    """
    home = settings.HOME.read()
    policies = Policies(home)
    name, number = parse_version(policies, identifier)
    findings = list(check_version(policies, name, number))
    yield from findings
    version = policies.read_version(name, number)
    if version.dataset is None:
        yield Finding("dataset", State.OK, f"{identifier} was not trained on a dataset")
        return
    path = find_dataset(home, version.dataset)
    if path is None:
        problem = f"there is no dataset {version.dataset} in {home / 'datasets'}"
        yield Finding("dataset", State.NOTE, problem, "Restore its folder to compare it.")
        return
    findings.append(check_dataset(path))
    yield findings[-1]
    if not is_healthy(findings):
        return
    dataset = Dataset.open(path)
    yield compare_build(policies, version, dataset, store)
    if retrain:
        try:
            yield compare_retraining(policies, version, dataset)
        except LtrainError as error:
            yield fault("retrained", error)


def check_version(policies: Policies, name: str, number: int) -> Iterator[Finding]:
    """Yield what is found of a version's files, and of its checkpoint if it is on disk."""
    label = f"{name}@{number}"
    try:
        policies.verify(name, number)
        version = policies.read_version(name, number)
        found = policies.find_checkpoint(name, number)
    except LtrainError as error:
        yield fault(label, error)
        return
    detail = f"{quantity(len(version.files), 'file')} of {version.size / 1e6:.1f} MB, as written"
    yield Finding(label, State.OK, detail)
    if found is None:
        return
    _, checkpoint = found
    try:
        listed = check_files(checkpoint)
    except LtrainError as error:
        fix = f"Restore it, or remove its folder: a run then starts from the weights of {label}."
        yield Finding("checkpoint", State.FAULT, str(error).rstrip("."), fix)
        return
    if listed is None:
        problem = f"{checkpoint} was written by an older version of ltrain and lists no digests"
        yield Finding("checkpoint", State.NOTE, problem)
        return
    yield Finding("checkpoint", State.OK, f"{checkpoint}: {quantity(listed, 'file')}, as written")


def check_removed(policies: Policies, name: str) -> Iterator[Finding]:
    """Yield the damaged ledgers of removed versions, which the lineage of others needs."""
    for directory in sorted((policies.directory / name / REMOVED).glob("v*")):
        try:
            files = read_version(directory / POLICY_MANIFEST).files
        except LtrainError as error:
            yield fault(f"{name}@{directory.name[1:]}", error)
            continue
        ledger = {LEDGER: files[LEDGER]} if LEDGER in files else {}
        if damage := find_damage(directory, ledger):
            problem = f"{directory} is damaged: {damage}"
            fix = "Restore it: without it, rollouts may be trained on twice."
            yield Finding(f"{name}@{directory.name[1:]}", State.FAULT, problem, fix)


def check_dataset(path: Path) -> Finding:
    """Return what is found of a dataset's files."""
    try:
        dataset = Dataset.open(path).require_intact()
    except LtrainError as error:
        return fault("dataset", error)
    rows = dataset.counts.get("samples", 0)
    return Finding("dataset", State.OK, f"{path}: as written, with {quantity(rows, 'sample')}")


def find_dataset(home: Path, dataset: str) -> Path | None:
    """Return the folder of the dataset with an id; None if the home has none."""
    return next((path for path, found in list_datasets(home) if found == dataset), None)


def compare_build(
    policies: Policies, version: PolicyVersion, dataset: Dataset, store: str | None
) -> Finding:
    """Build a version's dataset again from the store, and return whether it has the same rows."""
    try:
        with (
            Store.open(store, create=False) as opened,
            temporary_directory(dataset.path) as folder,
        ):
            built = _build_again(policies, version, dataset, opened, folder / "dataset")
            if built.id == dataset.id:
                detail = f"{opened.name} gives the same rows by the same recipe: {built.id}"
                return Finding("build", State.OK, detail)
            differs = _differences(dataset.manifest, built.manifest)
            problem = f"{opened.name} gives another dataset, {built.id}: {', '.join(differs)}"
    except LtrainError as error:
        return fault("build", error)
    fix = f"See both: `ltrain show {dataset.path}`, and `ltrain build` into another folder."
    return Finding("build", State.FAULT, problem, fix)


def fault(name: str, error: LtrainError) -> Finding:
    """Return an error as a finding: its first sentence, and the others as the fix."""
    problem, _, fix = str(error).partition(". ")
    return Finding(name, State.FAULT, problem, fix)


def _build_again(
    policies: Policies, version: PolicyVersion, dataset: Dataset, store: Store, out: Path
) -> Dataset:
    manifest = dataset.manifest
    parameters, trained = manifest["parameters"], manifest["trained"].get(version.policy)
    selection: dict[str, Any] = {name: parameters[name] for name in SELECTED if name in parameters}
    recipe = Recipe.from_sections(manifest["recipe"], f"The recipe of {dataset.path}")
    # executions that began since would be selected too
    until = f"toString(IngestedAt) <= '{manifest['watermark']}'"
    where = f"({recipe.source.where}) AND {until}" if recipe.source.where else until
    source = recipe.source.model_copy(update={"where": where})
    return build(
        store,
        recipe.model_copy(update={"source": source}),
        out,
        base=manifest["base"],
        served=[
            ServedPolicy.from_manifest(name, policies.path(name, 0), fields)
            for name, fields in manifest.get("served", {}).items()
        ],
        lineage=None if trained is None else read_lineage_of(policies, version, trained),
        **selection,
    )


def _differences(stored: dict[str, Any], built: dict[str, Any]) -> Iterator[str]:
    """Yield what differs between the manifests of two datasets."""
    for name, digest in stored["digests"].items():
        rows, expected = built["counts"][name], stored["counts"][name]
        if built["digests"].get(name) != digest:
            has = (
                f"{quantity(rows, 'row')}, expected {expected}"
                if rows != expected
                else "other rows"
            )
            yield f"{name} has {has}"
    if stored["schema"] != built["schema"]:
        yield "another version of ltrain built it"
    if stored["watermark"] != built["watermark"]:
        yield f"the store received spans until {built['watermark']}, not {stored['watermark']}"
