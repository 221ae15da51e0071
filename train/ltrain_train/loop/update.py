"""One update: trains on a dataset and publishes the new version.

The order makes a kill at any moment harmless: the checkpoint is complete before the version exists,
the version is complete before a server loads it, and `current` changes after the server loaded it.
"""

import logging
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import polars as pl
from opentelemetry.sdk.trace import TracerProvider

from ltrain_instrument import attributes
from ltrain_train.errors import NothingToTrain
from ltrain_train.gateway import GatewayClient
from ltrain_train.learner import LearnerClient, StepReport
from ltrain_train.loop.publication import publish_version
from ltrain_train.loop.report import Phases
from ltrain_train.policy import Policies
from ltrain_transforms.datasets import Dataset
from ltrain_transforms.recipe import Recipe

_logger = logging.getLogger("ltrain.loop")


@dataclass(frozen=True, slots=True)
class Update:
    """The result of one update."""

    version: int | None
    """The published version; None if every optimizer step was undone."""
    report: StepReport


class Updater:
    """Makes the updates of one policy."""

    def __init__(
        self,
        recipe: Recipe,
        policies: Policies,
        learner: LearnerClient,
        gateway: GatewayClient | None,
        provider: TracerProvider,
        phases: Phases,
        *,
        base: int,
    ) -> None:
        """Describe the updates; `base` is the version whose weights the learner has loaded."""
        self.recipe, self.policies, self.learner, self.gateway = recipe, policies, learner, gateway
        self.policy = recipe.policy[0].name
        self.tracer = provider.get_tracer(attributes.SCOPE_LEARNER)
        self.phases, self.base = phases, base

    def update(self, dataset: Dataset, version: int, checkpoints: Path) -> Update:
        """Train on `dataset`, which `version` sampled, and publish the new version.

        The checkpoint goes to the folder `checkpoints`, under the number of the new version.

        Raises:
            NothingToTrain: when the dataset has no row to train on.
        """
        with self.phases.measure("train"):
            rows = policy_rows(self.policy, dataset)
            report = self.learner.step(rows, version=version, dataset=dataset.id)
            if not report.rows:
                raise NothingToTrain(_all_stale_message(dataset, report, version))
            for warning in report.warnings:
                _logger.warning("ltrain: dataset %s: %s", dataset.id, warning)
            if not report.steps:
                return Update(None, report)
            checkpoint = checkpoints / str(self.policies.latest(self.policy) + 1)
            self.learner.save(checkpoint)
        with self.phases.measure("load"):
            draft = self.policies.directory / self.policy / f".draft-{version}"
            self.learner.export(draft)
            new = self.policies.publish_files(
                self.policy,
                draft,
                parent=version,
                dataset=dataset.id,
                recipe=self.recipe.digest,
                base=self.base,
                checkpoint=checkpoint,
            )
            origin = {
                attributes.DATASET_ID: dataset.id,
                attributes.RECIPE_DIGEST: self.recipe.digest,
            }
            publish_version(
                self.policies, self.policy, new, self.gateway, self.tracer, origin=origin
            )
        return Update(new, report)


def policy_rows(policy: str, dataset: Dataset) -> Path:
    """Return a file with the rows of `policy` only: the dataset's own if it has no other rows.

    Raises:
        NothingToTrain: when the dataset has no row of `policy`.
    """
    samples = dataset.path / "samples"
    rows = pl.scan_parquet(samples).filter(policy=policy)
    count = rows.select(pl.len()).collect().item()
    if not count:
        raise NothingToTrain(_no_rows_message(dataset))
    if count == dataset.counts["samples"]:
        return samples
    path = dataset.path.with_name(f"{dataset.path.name}.{policy}.parquet")
    rows.collect().write_parquet(path, compression="zstd")
    return path


def _no_rows_message(dataset: Dataset) -> str:
    reasons = Counter(dataset.drops["reason"].to_list()).most_common()
    span_attributes = ", ".join(f"{count} {reason}" for reason, count in reasons) or "none"
    return (
        f"Dataset {dataset.id} has no row to train on. Drops by reason: {span_attributes}. "
        f"`ltrain show {dataset.path}` lists them."
    )


def _all_stale_message(dataset: Dataset, report: StepReport, version: int) -> str:
    left_out = ", ".join(f"{count} {reason}" for reason, count in report.dropped.items())
    return (
        f"Every row of dataset {dataset.id} was left out ({left_out}) for policy version "
        f"{version}. Raise train.max_staleness, or run new rollouts."
    )
