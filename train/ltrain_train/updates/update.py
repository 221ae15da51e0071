"""One update: trains on a dataset and publishes the new version.

The order makes a kill at any moment harmless: the checkpoint is complete before the version exists,
the version is complete before a server loads it, and `current` changes after the server loaded it.
"""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from opentelemetry.sdk.trace import TracerProvider

from ltrain_instrument import attributes
from ltrain_train.gateway import GatewayClient
from ltrain_train.learner import Objective, StepReport
from ltrain_train.policy import Policies
from ltrain_train.publishing import TrainedVersion, promote, register, registers_adapters
from ltrain_train.runs import Phases
from ltrain_train.updates.learners import PolicyLearner
from ltrain_train.updates.training_rows import LeftOut, select_rows
from ltrain_transforms.datasets import Dataset
from ltrain_transforms.policy_lineage import Lineage
from ltrain_transforms.recipe import Recipe

_logger = logging.getLogger("ltrain.loop")


@dataclass(frozen=True, slots=True)
class Update:
    """The result of one update."""

    version: int | None
    """The published version; None if every optimizer step was undone or left out."""
    report: StepReport
    left_out: LeftOut


class Updater:
    """Makes the updates of one policy."""

    def __init__(
        self,
        recipe: Recipe,
        policies: Policies,
        learner: PolicyLearner,
        gateway: GatewayClient | None,
        provider: TracerProvider,
        phases: Phases,
    ) -> None:
        """Describe the updates.

        Args:
            recipe: the recipe of the policy, with one trained policy.
            gateway: it serves the policy; None: none does.
            provider: where spans are recorded.
            phases: where seconds are added.
        """
        self.recipe, self.policies, self.learner, self.gateway = recipe, policies, learner, gateway
        self.policy = recipe.trained[0].name
        self.tracer = provider.get_tracer(attributes.SCOPE_LEARNER)
        self.phases = phases

    def update(
        self, dataset: Dataset, lineage: Lineage, checkpoints: Path, number: int | None = None
    ) -> Update:
        """Train the version of `lineage` on `dataset`, and publish the new version.

        Args:
            checkpoints: folder of the checkpoint, which is named after the new version.
            number: the update's number in its run, from 0; None: the run has one update.

        Raises:
            NothingToTrain: when the dataset has no row to train on.
        """
        with self.phases.measure("train"):
            version = lineage.version
            rows = select_rows(dataset, lineage, self.recipe.train.max_staleness)
            objective = Objective.from_train(self.recipe.train, number)
            step = self.learner.step(rows.path, objective, version=version, dataset=dataset.id)
            report = replace(step, metrics={**step.metrics, **rows.staleness})
            for warning in report.warnings:
                _logger.warning("ltrain: dataset %s: %s", dataset.id, warning)
        if not report.steps:
            return Update(None, report, rows.left_out)
        new = self.release(dataset.id, version, rows.rollouts, checkpoints)
        return Update(new, report, rows.left_out)

    def release(self, dataset: str, parent: int, rollouts: Iterable[str], checkpoints: Path) -> int:
        """Register and promote the learner's weights as the next version; return its number.

        Args:
            dataset: id of the dataset that it was trained on.
            parent: the version at the start of training.
            rollouts: the rollouts that it was trained on.
            checkpoints: folder of the checkpoint, which is named after the new version.
        """
        with self.phases.measure("train"):
            checkpoint = checkpoints / str(self.policies.latest(self.policy) + 1)
            self.learner.save(checkpoint)
        with self.phases.measure("load"):
            draft = self.policies.directory / self.policy / f".draft-{parent}"
            if registers_adapters(self.recipe, self.policy, self.gateway):
                self.learner.export_adapter(draft)
            else:
                self.learner.export(draft)
            base, digest = self.learner.base, self.recipe.digest
            version = TrainedVersion(self.policy, parent, dataset, digest, base, checkpoint)
            number = register(self.policies, draft, version, rollouts)
            self.serve(number, version.origin)
            return number

    def serve(self, version: int, origin: Mapping[str, str] | None = None) -> None:
        """Make a version current."""
        promote(self.policies, self.policy, version, self.gateway, self.tracer, origin)
