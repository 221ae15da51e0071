"""Trains the critic beside the policy, and computes the policy's advantages with it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from ltrain_train.errors import BadBase
from ltrain_train.learner import row_values
from ltrain_train.learner.critic_advantages import critic_advantages
from ltrain_train.learner.objective import Objective
from ltrain_train.learner.protocol import Job
from ltrain_train.learner.samples import flat_values
from ltrain_train.learner.verl_backend import batch, engine
from ltrain_train.learner.weights import require_memory
from ltrain_train.policy import training_size

FOLDER = "critic"
"""The critic's part of a checkpoint."""
STARTS_ANEW = (
    "The checkpoint {} has no critic, so the critic starts anew. Its first advantages are those of "
    "values of 0; train.critic.warmup_updates trains it before the policy."
)
METRIC_NAMES = {"loss": "value_loss", "grad_norm": "critic_grad_norm"}


class CriticTraining:
    """The critic in training, in the workers of the policy."""

    def __init__(
        self, job: Job, group: Any, make_batch: Callable[[pl.DataFrame], batch.StepBatch]
    ) -> None:
        """Load the base with a value head into each worker of `group`."""
        self.group, self.make_batch = group, make_batch
        free = min(group.free_memory())
        require_memory("The critic", training_size(job.base, job.lora_rank), free)
        group.load_critic()

    def add_advantages(
        self, rows: pl.DataFrame, objective: Objective
    ) -> tuple[pl.DataFrame, dict[str, float]]:
        """Set advantages and returns of whole executions; return the rows and the metrics."""
        if objective.critic is None:
            raise BadBase("The objective has no critic. Use one of a recipe with [train.critic].")
        values = self.values(rows)
        rewards = flat_values(rows, "token_rewards").astype(np.float64)
        estimates = critic_advantages(rows, rewards, values.astype(np.float64), objective.critic)
        columns = {
            "advantages": estimates.advantages.astype(np.float32),
            batch.OLD_VALUES: values,
            batch.RETURNS: estimates.returns.astype(np.float32),
        }
        return row_values.with_values(rows, **columns), estimates.metrics

    def values(self, rows: pl.DataFrame) -> NDArray[np.float32]:
        """Return the value of the state before each response token of all rows."""
        step_batch = self.make_batch(rows)
        answer = self.group.infer_values(engine.as_inference_batch(step_batch.data)).get()
        values = batch.response_values(answer, "values", step_batch)
        return torch.cat(values).float().numpy()

    def train(self, data: Any) -> dict[str, float]:
        """Make one optimizer step of the critic on a training batch, and return its metrics."""
        metrics = engine.read_metrics(self.group.train_critic(data).get())
        return {METRIC_NAMES.get(name, name): value for name, value in metrics.items()}

    def predicts_finite(self, rows: pl.DataFrame) -> bool:
        """Return whether the values of `rows` are finite."""
        return bool(np.isfinite(self.values(rows)).all())

    def save(self, checkpoint: Path) -> None:
        """Write the critic's weights and optimizer into a checkpoint."""
        self.group.save_critic(checkpoint / FOLDER)

    def load(self, checkpoint: Path) -> tuple[str, ...]:
        """Load what `save` wrote; without it, start anew and return a warning."""
        if (checkpoint / FOLDER).is_dir():
            self.group.load_critic_checkpoint(checkpoint / FOLDER)
            return ()
        self.restart()
        return (STARTS_ANEW.format(checkpoint),)

    def restart(self) -> None:
        """Load the base again, with a value head and an optimizer as at the start."""
        self.group.restart_critic()
