"""One update: trains on a dataset and publishes the new version.

The order makes a kill at any moment harmless: the checkpoint is complete before the version exists,
the version is complete before a server loads it, and `current` changes after the server loaded it.

A learner that uses a GPU in turn with vLLM has its turn from the first step until the version is
written. vLLM sleeps meanwhile, and wakes to load the version.
"""

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from opentelemetry.sdk.trace import TracerProvider

from ltrain_instrument import attributes
from ltrain_instrument.errors import LtrainError
from ltrain_train import gpu
from ltrain_train.gateway import GatewayClient, GatewayRefused, GatewayUnreachable
from ltrain_train.learner import Objective, StepReport
from ltrain_train.policy import Policies, SharedWeights
from ltrain_train.processes import GpuTurn
from ltrain_train.publishing import (
    TrainedVersion,
    promote,
    publish,
    register,
    registers_adapters,
)
from ltrain_train.runs import Phases, retry_load
from ltrain_train.updates.learners import PolicyLearner
from ltrain_train.updates.training_rows import LeftOut, select_rows
from ltrain_transforms.datasets import Dataset
from ltrain_transforms.policy_lineage import Lineage
from ltrain_transforms.recipe import Recipe

TAKE_TIMEOUT = 5.0
"""Seconds in which the learner can take its turn after vLLM went to sleep."""

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
        turn: GpuTurn | None = None,
    ) -> None:
        """Describe the updates.

        Args:
            recipe: the recipe of the policy, with one trained policy.
            gateway: it serves the policy; None: none does.
            provider: where spans are recorded.
            phases: where seconds are added.
            turn: on the GPU that the learner uses in turn with the gateway's vLLM; None: it uses no
                GPU, or always.
        """
        self.recipe, self.policies, self.learner, self.gateway = recipe, policies, learner, gateway
        self.policy = recipe.trained[0].name
        self.tracer = provider.get_tracer(attributes.SCOPE_LEARNER)
        self.phases = phases
        self._turn = turn

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
        version, as_adapter = lineage.version, self.registers_adapters()
        with self.phases.measure("train"):
            rows = select_rows(dataset, lineage, self.recipe.train.max_staleness)
            objective = Objective.from_train(self.recipe.train, number)
            versions = rows.find_weights(self.policies)
        self._begin_turn()
        with self.phases.measure("train"):
            step = self.learner.step(
                rows.path, objective, version=version, dataset=dataset.id, versions=versions
            )
            report = replace(step, metrics={**step.metrics, **rows.staleness})
            for warning in report.warnings:
                _logger.warning("ltrain: dataset %s: %s", dataset.id, warning)
        if not report.steps:
            self._end_turn()
            self._serve_again(version)
            return Update(None, report, rows.left_out)
        new = self.release(dataset.id, version, rows.rollouts, checkpoints, as_adapter=as_adapter)
        return Update(new, report, rows.left_out)

    def registers_adapters(self) -> bool:
        """Return whether a new version is an adapter, and not merged weights.

        Raises:
            BadRun: when it is not, and the next version is to be a canary.
        """
        return registers_adapters(self.recipe, self.policy, self.gateway)

    def release(
        self,
        dataset: str,
        parent: int,
        rollouts: Iterable[str],
        checkpoints: Path,
        *,
        as_adapter: bool,
    ) -> int:
        """Register the learner's weights as the next version, and return its number.

        It becomes current, or a canary if `[deploy]` has a share.

        Args:
            dataset: id of the dataset that it was trained on.
            parent: the version at the start of training.
            rollouts: the rollouts that it was trained on.
            checkpoints: folder of the checkpoint, which is named after the new version.
            as_adapter: whether the version is an adapter, as `registers_adapters` returns.
        """
        with self._shared(as_adapter=as_adapter) as shared:
            with self.phases.measure("train"):
                checkpoint = checkpoints / str(self.policies.latest(self.policy) + 1)
                self.learner.save(checkpoint)
            with self.phases.measure("load"):
                draft = self.policies.directory / self.policy / f".draft-{parent}"
                if as_adapter:
                    self.learner.export_adapter(draft)
                else:
                    self.learner.export(draft, shared=shared is not None)
            self._end_turn()
            with self.phases.measure("load"):
                base, digest = self.learner.base, self.recipe.digest
                version = TrainedVersion(self.policy, parent, dataset, digest, base, checkpoint)
                number = register(self.policies, draft, version, rollouts)
                publish(
                    self.policies,
                    self.policy,
                    number,
                    self.recipe.deploy,
                    self.gateway,
                    self.tracer,
                    version.origin,
                    shared,
                )
                return number

    def serve(self, version: int) -> None:
        """Make a version current."""
        promote(self.policies, self.policy, version, self.gateway, self.tracer)

    @contextmanager
    def _shared(self, *, as_adapter: bool) -> Iterator[SharedWeights | None]:
        """Yield the memory with the new weights, from which vLLM begins to load them, if it can.

        So the load runs beside the writes of the checkpoint and the version.
        """
        gateway, shared = self.gateway, None
        if not as_adapter and gateway is not None and self._wants_memory:
            # without an answer the files reach vLLM; nothing waits before the checkpoint is saved
            with self.phases.measure("load"), suppress(GatewayUnreachable, GatewayRefused):
                shared = self.learner.share() if gateway.shares(self.policy) else None
                if shared is not None:
                    gateway.offer(self.policy, shared)
        try:
            yield shared
        finally:
            if shared is not None:
                with suppress(LtrainError):  # a learner that has ended has no memory left
                    self.learner.unshare()

    @property
    def _wants_memory(self) -> bool:
        way = self.recipe.serve.weights
        return way == "memory" or (way == "auto" and gpu.is_usable())

    def _begin_turn(self) -> None:
        """Let vLLM sleep, and move the learner to the GPU, if they use it in turn."""
        if (turn := self._turn) is None or (gateway := self.gateway) is None:
            return
        with self.phases.measure("swap"):
            retry_load(gateway.sleep)
            while not turn.take(TAKE_TIMEOUT):  # vLLM was started again before
                retry_load(gateway.sleep)
            self.learner.move("gpu")

    def _end_turn(self) -> None:
        """Move the learner to the host, and wake vLLM, whose calls wait until it has a version."""
        if (turn := self._turn) is None or (gateway := self.gateway) is None:
            return
        with self.phases.measure("swap"):
            self.learner.move("host")
            turn.end()
            retry_load(gateway.wake)

    def _serve_again(self, version: int) -> None:
        """Let vLLM answer calls again after an update without a new version."""
        if self._turn is not None and (gateway := self.gateway) is not None:
            with self.phases.measure("swap"):
                retry_load(lambda: gateway.load(self.policy, version))
