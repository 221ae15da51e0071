"""The offline run: trains once on stored traces and publishes the new version."""

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from ltrain_collector.store import Store
from ltrain_train.errors import NotFinite
from ltrain_train.loop.publication import find_gateway
from ltrain_train.loop.report import Phases
from ltrain_train.loop.retention import prune_versions
from ltrain_train.loop.run import Plan, make_learner
from ltrain_train.loop.training_rows import select_rows
from ltrain_train.loop.update import Update, Updater
from ltrain_train.policy import Policies
from ltrain_train.processes import RunLock
from ltrain_train.store import open_service_provider
from ltrain_transforms.datasets import Dataset, build
from ltrain_transforms.policy_file import read_base_digests
from ltrain_transforms.policy_lineage import Lineage


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


def train_from_store(plan: Plan, store: Store, lock: RunLock, *, again: bool = False) -> OfflineRun:
    """Build a dataset from `store` by the recipe, train on it, and publish the new version.

    Args:
        again: also train on rollouts that the policy was trained on before.

    Raises:
        NothingToTrain: when the dataset has no row to train on.
    """
    policies = plan.policies()
    lineage = _read_lineage(plan, policies, again)
    out = plan.home / "datasets" / f"{_run_name(plan)}-v{lineage.version}"
    base = read_base_digests(policies.directory / plan.policy)
    dataset = build(store, plan.recipe, out, base=base, lineage=lineage)
    return train_from_dataset(plan, dataset, lock, again=again)


def train_from_dataset(
    plan: Plan, dataset: Dataset, lock: RunLock, *, again: bool = False
) -> OfflineRun:
    """Train on a dataset and publish the new version.

    The learner's guard holds `lock` until the learner has ended.

    Args:
        again: as in `train_from_store`.

    Raises:
        NothingToTrain: when the dataset has no row to train on.
        NotFinite: when every optimizer step was undone.
    """
    policies = plan.policies()
    lineage = _read_lineage(plan, policies, again)
    version = lineage.version
    select_rows(dataset, lineage, plan.train.max_staleness)  # an error before a model is loaded
    with ExitStack() as stack, lock.working():
        base, learner = make_learner(plan, policies, version, lock)
        stack.enter_context(learner)
        provider = open_service_provider("ltrain-loop", plan.home)
        stack.callback(provider.shutdown)
        gateway = stack.enter_context(find_gateway(plan.home, plan.policy))
        updater = Updater(plan.recipe, policies, learner, gateway, provider, Phases(), base=base)
        checkpoints = plan.home / "runs" / _run_name(plan) / "checkpoints"
        update = updater.update(dataset, lineage, checkpoints)
    if update.version is None:
        raise NotFinite(f"No version was published. {' '.join(update.report.warnings)}")
    keep = plan.train.keep_versions
    prune_versions(policies, plan.policy, plan.home / "runs", keep=keep, in_use={version})
    path = policies.path(plan.policy, update.version)
    return OfflineRun(dataset, update, update.version, path, served=gateway is not None)


def _run_name(plan: Plan) -> str:
    """Return the name of the run's folders, which the policies of one recipe folder do not share.

    A policy's name has no '@'.
    """
    return f"{plan.name}-once@{plan.policy}"


def _read_lineage(plan: Plan, policies: Policies, again: bool) -> Lineage:
    current = policies.current(plan.policy)
    return Lineage.read(policies.directory / plan.policy, current, again=again)
