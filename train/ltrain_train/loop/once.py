"""The offline run: trains once on stored traces and publishes the new version."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from ltrain_collector.store import Store
from ltrain_instrument.files import path_component
from ltrain_train.errors import NotFinite, NothingToTrain
from ltrain_train.learner import supports_prefix_tree
from ltrain_train.loop.nothing_to_train import nothing_to_train
from ltrain_train.loop.publication import find_gateway
from ltrain_train.loop.report import Phases
from ltrain_train.loop.retention import prune_versions
from ltrain_train.loop.run import Plan, make_learner
from ltrain_train.loop.training_report import TrainingReport, make_report
from ltrain_train.loop.training_rows import RowSelection, find_rows
from ltrain_train.loop.update import Update, Updater
from ltrain_train.policy import Policies, held_reference, read_config
from ltrain_train.processes import RunLock
from ltrain_train.store import open_service_provider
from ltrain_transforms.datasets import MANIFEST, Dataset, build, dataset_folder
from ltrain_transforms.errors import NoDataset
from ltrain_transforms.policy_file import read_base_digests, versions_trained_on
from ltrain_transforms.policy_lineage import Lineage


@dataclass(frozen=True, slots=True)
class TrainingInput:
    """The dataset of an offline run, and what of it a version is trained on."""

    lineage: Lineage
    selection: RowSelection
    report: TrainingReport

    def check(self) -> None:
        """Check that there is a row to train on.

        Raises:
            NothingToTrain: when there is none.
        """
        if not self.report.rows:
            raise nothing_to_train(self.report, self.selection)


@dataclass(frozen=True, slots=True)
class OfflineRun:
    """The result of an offline run."""

    dataset: Dataset
    update: Update
    version: int
    """The new version."""
    path: Path
    """Its directory."""
    served: bool
    """Whether a gateway serves the new version."""


def read_lineage(plan: Plan, *, again: bool = False, register: bool = True) -> Lineage:
    """Read the lineage of the version that the run trains.

    Args:
        again: also train on rollouts that the policy was trained on before.
        register: make the plan's model version 0 of a new policy; without, one is assumed.
    """
    policies = plan.policies() if register else Policies(plan.home)
    if not register and not policies.versions(plan.policy):
        return Lineage(plan.policy, (0,))
    current = policies.current(plan.policy)
    return Lineage.read(policies.directory / plan.policy, current, again=again)


def read_store(
    plan: Plan, store: Store, lineage: Lineage, *, replace: bool = False
) -> TrainingInput:
    """Build a dataset from `store` by the recipe, for the version of `lineage`.

    A dataset of the same version that no version was trained on is replaced.

    Args:
        replace: replace a dataset that a version was trained on, too.

    Raises:
        NothingToBuild: when the recipe's source selects no execution.
        DatasetExists: when another dataset of this version is there, and is not to be replaced.
    """
    part = f"{plan.policy}@{lineage.version}"
    dataset = build_dataset(plan, store, part, lineage=lineage, replace=replace)
    return select_input(plan, dataset, lineage)


def build_dataset(
    plan: Plan, store: Store, part: str, *, lineage: Lineage | None = None, replace: bool = False
) -> Dataset:
    """Build a dataset from `store` by the recipe, in the run's folder of datasets.

    Args:
        part: the end of the dataset's name.
        lineage: of the version whose outdated rollouts are left out; None: none are.
        replace: as in `read_store`, with the same errors.
    """
    policies = plan.home / "policies"
    out = dataset_folder(plan.home, plan.name, plan.recipe.source.mode, part)
    return build(
        store,
        plan.recipe,
        out,
        base=read_base_digests(policies / plan.policy),
        lineage=lineage,
        replace=replace or _is_unused(out, policies),
    )


def _is_unused(folder: Path, policies: Path) -> bool:
    """Return whether no version was trained on the dataset in a folder; it must be readable."""
    if not (folder / MANIFEST).exists():
        return False
    try:
        return not versions_trained_on(policies, Dataset.open(folder).id)
    except NoDataset:
        return False


def select_input(plan: Plan, dataset: Dataset, lineage: Lineage) -> TrainingInput:
    """Find what of a dataset the version of `lineage` is trained on, and report it."""
    selection = find_rows(dataset, lineage, plan.train.max_staleness)
    shared = _shares_prefixes(plan, lineage.version)
    report = make_report(selection, lineage.version, plan.train, shared=shared)
    return TrainingInput(lineage, selection, report)


def _shares_prefixes(plan: Plan, version: int) -> bool:
    """Return whether the model computes a common prefix of rows once; an unknown one does."""
    policies, folder = Policies(plan.home), plan.model
    if version in policies.versions(plan.policy):
        folder = policies.weights_path(plan.policy, version)
    if folder is None or not (folder / "config.json").is_file():
        return True
    return supports_prefix_tree(read_config(folder))


def train_on(plan: Plan, data: TrainingInput, lock: RunLock) -> OfflineRun:
    """Train on a dataset and publish the new version.

    The learner's guard holds `lock` until the learner has ended.

    Raises:
        NothingToTrain: when the dataset has no row to train on, or every call was rejected.
        NotFinite: when every optimizer step was undone.
    """
    data.check()
    dataset, version = data.selection.dataset, data.lineage.version
    with open_updater(plan, version, lock) as updater:
        checkpoints = run_folder(plan, "once") / "checkpoints"
        update = updater.update(dataset, data.lineage, checkpoints)
    if update.version is None:
        error = NotFinite if update.report.undone else NothingToTrain
        raise error(f"No version was published. {' '.join(update.report.warnings)}")
    policies = Policies(plan.home)
    prune(plan, version)
    path = policies.path(plan.policy, update.version)
    return OfflineRun(dataset, update, update.version, path, served=updater.gateway is not None)


@contextmanager
def open_updater(plan: Plan, version: int, lock: RunLock) -> Iterator[Updater]:
    """Yield the updater of a version, with its learner and the gateway that serves the policy.

    The learner's guard holds `lock` until the learner has ended.
    """
    policies = plan.policies()
    with ExitStack() as stack, lock.working():
        stack.enter_context(held_reference(policies, plan.train))
        base, learner = make_learner(plan, policies, version, lock)
        stack.enter_context(learner)
        provider = open_service_provider("ltrain-loop", plan.home)
        stack.callback(provider.shutdown)
        gateway = stack.enter_context(find_gateway(plan.home, plan.policy))
        yield Updater(plan.recipe, policies, learner, gateway, provider, Phases(), base=base)


def prune(plan: Plan, parent: int) -> None:
    """Remove the policy's versions that are not kept; `parent`, the latest version's, is."""
    keep, runs = plan.train.keep_versions, plan.home / "runs"
    prune_versions(Policies(plan.home), plan.policy, runs, keep=keep, in_use={parent})


def run_folder(plan: Plan, kind: str) -> Path:
    """Return the folder of a run without waves, which a recipe folder's policies do not share.

    Args:
        kind: of the run, such as `once`. A policy's name has no '@'.
    """
    return plan.home / "runs" / path_component(f"{plan.name}-{kind}@{plan.policy}")
