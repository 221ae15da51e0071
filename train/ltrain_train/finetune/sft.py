"""Supervised training: epochs over the rows of the best rollouts, then the next version."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl

from ltrain_train.errors import NotFinite
from ltrain_train.finetune.sft_rows import SftRows
from ltrain_train.learner import Objective
from ltrain_train.processes import RunLock
from ltrain_train.updates import PolicyLearner, open_updater, prune, run_folder
from ltrain_transforms.recipe import Recipe

_logger = logging.getLogger("ltrain.offline")


@dataclass(frozen=True, slots=True)
class Epoch:
    """The result of one epoch; 0 is before training."""

    number: int
    loss: float | None
    """Mean loss of the optimizer steps; None before training."""
    held_out: float | None
    """Loss of the held-out rows after the epoch; None without such rows."""
    metrics: dict[str, float]
    """The learner's metrics of the epoch, or TRL's of its last optimizer step."""
    seconds: float
    margin: float | None = None
    """With pairs: the mean difference of the rewards of chosen and rejected answers, of the
    held-out pairs if there are some."""


@dataclass(frozen=True, slots=True)
class OfflineVersion:
    """A version that an offline trainer has published."""

    number: int
    epochs: tuple[Epoch, ...]
    served: bool
    """Whether a gateway serves it."""


def train_sft(data: SftRows, lock: RunLock, on_epoch: Callable[[Epoch], None]) -> OfflineVersion:
    """Train on the rows and publish the next version.

    Args:
        lock: the learner's guard holds it until the learner has ended.
        on_epoch: called with each finished epoch, and with the loss before training.
    """
    plan, dataset = data.source.plan, data.source.dataset.id
    parent, epochs = data.source.lineage.version, list[Epoch]()
    checkpoints = run_folder(plan, "sft") / "checkpoints"
    with open_updater(plan, parent, lock) as updater:
        as_adapter = updater.registers_adapters()
        for number in range(plan.recipe.sft.epochs + 1):
            epoch = _run_epoch(updater.learner, data, number)
            epochs.append(epoch)
            on_epoch(epoch)
        version = updater.release(
            dataset,
            parent,
            data.rollouts,
            checkpoints,
            as_adapter=as_adapter,
        )
    prune(plan, parent)
    return OfflineVersion(version, tuple(epochs), served=updater.gateway is not None)


def _run_epoch(learner: PolicyLearner, data: SftRows, number: int) -> Epoch:
    """Train on every row once, and measure the held-out rows; number 0 only measures."""
    began, metrics = time.monotonic(), dict[str, float]()
    if number:
        objective = make_objective(data.source.plan.recipe, data.report.steps)
        version, dataset = data.source.lineage.version, data.source.dataset.id
        report = learner.step(data.trained, objective, version=version, dataset=dataset)
        for warning in report.warnings:
            _logger.warning("ltrain: epoch %d: %s", number, warning)
        if not report.steps:
            raise NotFinite(
                f"No version was published: epoch {number} made no step. "
                f"{' '.join(report.warnings)}"
            )
        metrics = report.metrics
    held_out = measure_loss(learner, data.held_out)
    seconds = time.monotonic() - began
    return Epoch(number, metrics.get("loss"), held_out, metrics, seconds)


def make_objective(recipe: Recipe, steps: int) -> Objective:
    """Return the objective of an epoch with so many optimizer steps."""
    objective = Objective.from_train(recipe.train)
    rate = recipe.sft.learning_rate or objective.learning_rate
    return replace(objective, kind="sft", steps_per_wave=steps, learning_rate=rate)


def measure_loss(learner: PolicyLearner, rows: Path) -> float | None:
    """Return the loss of rows under the current weights: the weighted mean, as in training."""
    columns = pl.read_parquet(rows, columns=["response_mask", "loss_weight"])
    if columns.is_empty():
        return None
    log_probs = pl.Series(learner.log_probs(rows, "sft"), dtype=pl.List(pl.Float64))
    tokens = columns.with_columns(log_probs=log_probs).explode([*columns.columns, "log_probs"])
    weight = pl.col("response_mask") * pl.col("loss_weight")
    loss = -(weight * pl.col("log_probs")).sum() / weight.sum()
    return float(tokens.select(loss).item())
