"""The offline run: trains once on stored traces and publishes the new version."""

import glob
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ltrain_collector.store import Store
from ltrain_instrument.files import finish_replacement, path_component
from ltrain_train.errors import BadRun, NotFinite, NothingToTrain
from ltrain_train.learner import supports_prefix_tree
from ltrain_train.policy import Deployments, Policies, read_config
from ltrain_train.processes import RunLock
from ltrain_train.publishing import find_gateway, prune_versions
from ltrain_train.runs import Phases, Plan, read_updates, record_alarms, update_alarms
from ltrain_train.store import open_service_provider
from ltrain_train.updates.learners import Learners
from ltrain_train.updates.training_report import TrainingReport, make_report, nothing_to_train
from ltrain_train.updates.training_rows import RowSelection, find_rows
from ltrain_train.updates.update import Update, Updater
from ltrain_transforms.alarms import Alarm
from ltrain_transforms.datasets import MANIFEST, Dataset, build, dataset_folder
from ltrain_transforms.errors import NoDataset
from ltrain_transforms.policy_file import read_base_digests, versions_trained_on
from ltrain_transforms.policy_lineage import Lineage
from ltrain_transforms.rendering import find_served

JUDGING = ("reward", "credit", "filter")
"""The sections of a recipe that decide what is in the rows of a dataset."""


@dataclass(frozen=True, slots=True)
class OfflineOptions:
    """The stored data that a command trains on, and its report."""

    store: str | None = None
    """Address of the store; None: LTRAIN_STORE."""
    from_dataset: Path | None = None
    """Folder of a dataset, in place of the store's traces."""
    again: bool = False
    """Also train on rollouts that the policy was trained on before."""
    replace: bool = False
    """Replace a dataset of the same version that a version was trained on."""
    dry_run: bool = False
    """Report only."""
    as_json: bool = False


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
    """Whether a gateway serves the policy."""
    removed: tuple[int, ...]
    """Old versions that were removed."""
    alarms: tuple[Alarm, ...] = ()


def read_lineage(
    plan: Plan, version: int | None = None, *, again: bool = False, register: bool = True
) -> Lineage:
    """Read the lineage of the version that the run trains.

    Args:
        version: the version; None: the current one.
        again: also train on rollouts that the policy was trained on before.
        register: make the plan's model version 0 of a new policy; without, one is assumed.
    """
    policies = plan.policies() if register else Policies(plan.home)
    if not register and not policies.versions(plan.policy):
        return Lineage(plan.policy, (0,))
    trained = policies.current(plan.policy) if version is None else version
    return Lineage.read(policies.directory / plan.policy, trained, again=again)


def read_store(
    plan: Plan,
    store: Store,
    lineage: Lineage,
    *,
    replace: bool = False,
    beside: bool = False,
    **selection: Any,
) -> TrainingInput:
    """Build a dataset from `store` by the recipe, for the version of `lineage`.

    A dataset of the same version that no version was trained on is replaced.

    Args:
        lineage: of the policy's version.
        replace: replace a dataset that a version was trained on, too.
        beside: keep a dataset that a version was trained on, and build in another folder.
        selection: `ended_before` and `since`, as in `build`.

    Raises:
        NothingToBuild: when the recipe's source selects no execution.
        DatasetExists: when another dataset of this version is there, and is not to be replaced.
    """
    part = _part(plan, lineage.version)
    selection |= {"lineage": lineage, "replace": replace, "beside": beside}
    dataset = build_dataset(plan, store, part, **selection)
    return select_input(plan, dataset, lineage)


def build_dataset(
    plan: Plan,
    store: Store,
    part: str,
    *,
    lineage: Lineage | None = None,
    replace: bool = False,
    beside: bool = False,
    **selection: Any,
) -> Dataset:
    """Build a dataset from `store` by the recipe, in the run's folder of datasets.

    Args:
        part: the end of the dataset's name.
        lineage: of the version whose outdated rollouts are left out; None: none are.
        replace: as in `read_store`, with the same errors.
        beside: as in `read_store`.
        selection: as in `read_store`.
    """
    policies = plan.home / "policies"
    out, number = _dataset_folder(plan, part), 1
    while beside and _is_used(out, policies):
        number += 1
        out = _dataset_folder(plan, f"{part}.{number}")
    return build(
        store,
        plan.recipe,
        out,
        base=read_base_digests(policies / plan.policy),
        served=find_served(plan.recipe, policies, plan.folder, plan.models()),
        lineage=lineage,
        replace=replace or not _is_used(out, policies),
        **selection,
    )


def open_dataset(plan: Plan, folder: Path) -> Dataset:
    """Open a dataset that was built before, by a recipe that judges as the plan's does.

    Raises:
        NoDataset: when the folder has none.
        DamagedDataset: when one of its files is damaged.
        BadRun: when the dataset's recipe has other rewards, another credit or another filter.
    """
    dataset = Dataset.open(folder).require_intact()
    built = dataset.manifest["recipe"]
    recipe = plan.recipe.with_mode(built["source"].get("mode", "train"))
    own = recipe.model_dump(mode="json", by_alias=True)
    if others := [f"[{name}]" for name in JUDGING if own[name] != built[name]]:
        raise BadRun(
            f"{folder} was built by another recipe: {' and '.join(others)} of the two differ, and "
            "the dataset's rewards and advantages are those of its own. Name that recipe, or build "
            "the dataset again with this one: `ltrain build`."
        )
    return dataset


def remove_datasets(plan: Plan, versions: Sequence[int]) -> None:
    """Remove the datasets that were built for versions which are removed."""
    for version in versions:
        folder = _dataset_folder(plan, _part(plan, version))
        for each in (folder, *folder.parent.glob(f"{glob.escape(folder.name)}.*")):
            shutil.rmtree(each, ignore_errors=True)


def _part(plan: Plan, version: int) -> str:
    return f"{plan.policy}@{version}"


def _dataset_folder(plan: Plan, part: str) -> Path:
    return dataset_folder(plan.home, plan.name, plan.recipe.source.mode, part)


def _is_used(folder: Path, policies: Path) -> bool:
    """Return whether a version was trained on the dataset in a folder, or it cannot be read."""
    finish_replacement(folder)
    if not (folder / MANIFEST).exists():
        return False
    try:
        return bool(versions_trained_on(policies, Dataset.open(folder).id))
    except NoDataset:
        return True


def select_input(plan: Plan, dataset: Dataset, lineage: Lineage) -> TrainingInput:
    """Find what of a dataset the version of `lineage` is trained on, and report it."""
    selection = find_rows(dataset, lineage, plan.train.max_staleness)
    shared = _shares_prefixes(plan, lineage.version)
    report = make_report(selection, lineage.version, plan.train, shared=shared)
    return TrainingInput(lineage, selection, report)


def _shares_prefixes(plan: Plan, version: int) -> bool:
    """Return whether the model computes a common prefix of rows once; an unknown one does."""
    if plan.train.sequence_ranks > 1:
        return False
    policies, folder = Policies(plan.home), plan.model
    if version in policies.versions(plan.policy):
        folder = policies.weights_path(plan.policy, version)
    if folder is None or not (folder / "config.json").is_file():
        return True
    return supports_prefix_tree(read_config(folder))


@contextmanager
def open_updaters(
    plans: Sequence[Plan], versions: Mapping[str, int], lock: RunLock
) -> Iterator[dict[str, Updater]]:
    """Yield the updater of each plan's policy; the learners load their models meanwhile.

    The guards of the learners hold `lock` until these have ended.

    Args:
        versions: the version of each policy that is trained.
    """
    with ExitStack() as stack, lock.working():
        policies = plans[0].policies()
        learners = stack.enter_context(Learners(plans, policies, versions, lock))
        provider = open_service_provider("ltrain-loop", plans[0].home)
        stack.callback(provider.shutdown)
        yield {
            plan.policy: Updater(
                plan.recipe, policies, learners.of(plan.policy), None, provider, Phases()
            )
            for plan in plans
        }


def require_no_trial(plan: Plan) -> None:
    """Check that no other candidate answers calls, if the next version would be one.

    Raises:
        BadDeployment: when one does.
    """
    if plan.recipe.deploy.share:
        Deployments(Policies(plan.home), plan.policy).require_no_candidate()


@contextmanager
def open_updater(plan: Plan, version: int, lock: RunLock) -> Iterator[Updater]:
    """Yield the updater of a version, as `open_updaters` does, with the policy's gateway."""
    require_no_trial(plan)
    with open_updaters([plan], {plan.policy: version}, lock) as updaters:
        updater = updaters[plan.policy]
        with _through_gateway(plan, updater):
            yield updater


@contextmanager
def _through_gateway(plan: Plan, updater: Updater) -> Iterator[None]:
    """Publish through the gateway that serves the policy in the block, if there is one."""
    with find_gateway(plan.home, plan.policy) as gateway:
        updater.gateway = gateway
        yield


def train_on(plan: Plan, data: TrainingInput, updater: Updater) -> OfflineRun:
    """Train on a dataset and publish the new version, through a gateway that serves the policy.

    Raises:
        NothingToTrain: when the dataset has no row to train on, or every call was rejected.
        NotFinite: when every optimizer step was undone.
        BadJournal: when the figures of earlier updates cannot be read.
    """
    data.check()
    dataset, version = data.selection.dataset, data.lineage.version
    folder = run_folder(plan, "once")
    before = read_updates(folder)
    with _through_gateway(plan, updater):
        update = updater.update(dataset, data.lineage, folder / "checkpoints")
    if update.version is None:
        error = NotFinite if update.report.undone else NothingToTrain
        raise error(f"No version was published. {' '.join(update.report.warnings)}")
    alarms = update_alarms(folder, before, update.version, dataset, plan.recipe.reward)
    record_alarms(
        updater.tracer,
        alarms,
        run=plan.name,
        mode=plan.recipe.source.mode,
        policy=plan.policy,
        version=version,
        dataset=dataset.id,
    )
    removed = prune(plan, version, updater.learner.base)
    path = updater.policies.path(plan.policy, update.version)
    served = updater.gateway is not None
    return OfflineRun(dataset, update, update.version, path, served, removed, tuple(alarms))


def prune(plan: Plan, *in_use: int) -> tuple[int, ...]:
    """Remove the policy's versions that are not kept, as those in use are, and return them."""
    keep, runs = plan.train.keep_versions, plan.home / "runs"
    removal = prune_versions(Policies(plan.home), plan.policy, runs, keep=keep, in_use=in_use)
    return tuple(removal.versions)


def run_folder(plan: Plan, kind: str) -> Path:
    """Return the folder of a run without waves, which a recipe folder's policies do not share.

    Args:
        kind: of the run, such as `once`. A policy's name has no '@'.
    """
    return plan.home / "runs" / path_component(f"{plan.name}-{kind}@{plan.policy}")
