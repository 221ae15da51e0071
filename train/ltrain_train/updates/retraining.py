"""Repeats the update that made a version, from the version before it, and compares the weights."""

import re
from dataclasses import replace
from pathlib import Path

import polars as pl

from ltrain_instrument.files import temporary_directory
from ltrain_instrument.instrumentors import Finding, State
from ltrain_train.learner import Objective, largest_difference
from ltrain_train.policy import Policies, held_reference
from ltrain_train.processes import run_lock
from ltrain_train.runs import Plan
from ltrain_train.updates.learners import make_learner
from ltrain_train.updates.training_rows import select_rows
from ltrain_transforms.datasets import Dataset
from ltrain_transforms.policy_file import LEDGER, PolicyVersion
from ltrain_transforms.policy_lineage import Lineage
from ltrain_transforms.recipe import Recipe

OF_A_WAVE = re.compile(r"train-(\d+)(?:-|$)")
"""The name of a run's dataset, with the number of its update."""
OF_SFT = "-sft@"
"""A part of the folder names of `ltrain sft`."""
NAME = "retrained"


def compare_retraining(policies: Policies, version: PolicyVersion, dataset: Dataset) -> Finding:
    """Repeat the update of a version on its dataset, and compare the weights; nothing is kept.

    No span is recorded. The policy is locked meanwhile.

    Raises:
        LtrainError: when the learner cannot load the version before, or make the update.
    """
    recipe = Recipe.from_sections(dataset.manifest["recipe"], f"The recipe of {dataset.path}")
    recipe = recipe.for_policy(version.policy)
    if problem := _obstacle(policies, version, recipe):
        return Finding(NAME, State.NOTE, f"the update cannot be repeated: {problem}")
    plan = Plan(recipe=recipe, folder=Path.cwd(), home=policies.directory.parent)
    with temporary_directory(dataset.path) as folder:
        _retrain(plan, policies, version, dataset, folder / "version")
        path = policies.path(version.policy, version.version)
        difference = largest_difference(path, folder / "version")
    if not difference:
        return Finding(NAME, State.OK, f"v{version.parent} and the dataset give the same weights")
    problem = f"v{version.parent} and the dataset give weights that differ by up to {difference:g}"
    fix = (
        "On a GPU, or another machine, sums are rounded otherwise; on the same CPU they are equal."
    )
    return Finding(NAME, State.FAULT, problem, fix)


def _obstacle(policies: Policies, version: PolicyVersion, recipe: Recipe) -> str | None:
    """Return why the update cannot be repeated; None if it can."""
    if version.checkpoint is None or OF_SFT in version.checkpoint or version.parent is None:
        return "`ltrain run` did not make this version"
    if version.recipe != recipe.digest:
        return f"it was trained by the recipe {version.recipe}, the dataset has {recipe.digest}"
    if version.parent not in policies.versions(version.policy):
        return f"v{version.parent} was removed"
    parent = policies.read_version(version.policy, version.parent)
    if parent.parent is not None and not policies.find_checkpoint(parent.policy, parent.version):
        return f"the checkpoint of v{version.parent} was removed"
    return None


def _retrain(
    plan: Plan, policies: Policies, version: PolicyVersion, dataset: Dataset, out: Path
) -> None:
    """Write the artifact of the repeated update to `out`."""
    parent = version.parent or 0
    lineage = read_lineage_of(policies, version, parent)
    rows = select_rows(dataset, lineage, plan.train.max_staleness)
    found = OF_A_WAVE.match(dataset.path.name)
    objective = Objective.from_train(plan.recipe.train, int(found[1]) if found else None)
    with (
        run_lock(plan.home, policy=version.policy) as lock,
        held_reference(policies, plan.train),
    ):
        _, client = make_learner(plan, policies, parent, lock)
        client.job = replace(client.job, home=None)
        client.log = client.log.with_name("learner-verify.log")
        with client as learner:
            weights = rows.find_weights(policies)
            learner.step(rows.path, objective, version=parent, dataset=dataset.id, versions=weights)
            if version.artifact == "adapter":
                learner.export_adapter(out)
            else:
                learner.export(out)


def read_lineage_of(policies: Policies, version: PolicyVersion, ancestor: int) -> Lineage:
    """Return the lineage of an ancestor, as it was read when `version` was trained."""
    folder = policies.directory / version.policy
    lineage = Lineage.read(folder, ancestor)
    ledger = policies.path(version.policy, version.version) / LEDGER
    if ledger.is_file() and lineage.consumed(pl.read_parquet(ledger)["rollout"]).height:
        return Lineage.read(folder, ancestor, again=True)  # only `--again` trains on these
    return lineage
