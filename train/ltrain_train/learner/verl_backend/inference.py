"""Log-probabilities of rows under the models that the ranks have loaded, or load for them."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from ltrain_train.errors import BadBase
from ltrain_train.learner.protocol import Job
from ltrain_train.learner.verl_backend import batch, engine
from ltrain_train.learner.weights import require_memory
from ltrain_train.policy import Reference, reference_size

SMALLER = (
    ', or train an adapter (train.lora_rank) with train.reference = "base", which needs no second '
    "model"
)


class Inference:
    """The forward passes of a group of workers."""

    def __init__(
        self, job: Job, group: Any, make_batch: Callable[[pl.DataFrame], batch.StepBatch]
    ) -> None:
        self.job, self.group, self._make_batch = job, group, make_batch

    def log_probs(self, rows: pl.DataFrame) -> list[torch.Tensor]:
        """Return the log-probabilities of each row's response tokens under the trained weights."""
        [log_probs] = self.values(rows, "log_probs")
        return log_probs

    def values(
        self, rows: pl.DataFrame, *names: str, adapter: bool = True, reference: bool = False
    ) -> list[list[torch.Tensor]]:
        """Return `log_probs` or `entropy` of each row's response tokens, under the current weights.

        Without `adapter` the model is used without its adapter; with `reference` the reference that
        was loaded takes its place.
        """
        step_batch = self._make_batch(rows)
        data = engine.as_inference_batch(
            step_batch.data, entropy="entropy" in names, adapter=adapter
        )
        infer = self.group.infer_reference if reference else self.group.infer_batch
        answer = infer(data).get()
        return [batch.response_values(answer, name, step_batch) for name in names]

    def of_reference(self, rows: pl.DataFrame) -> list[torch.Tensor]:
        """Return the log-probabilities of each row's response tokens under the reference."""
        is_loaded = self.job.reference is not None
        if not is_loaded and not self.job.lora_rank:
            raise BadBase(
                "train.kl_coefficient needs a reference, and this learner trains all weights and "
                "has loaded none. Name the directory of one when the learner is started."
            )
        [log_probs] = self.values(rows, "log_probs", adapter=is_loaded, reference=is_loaded)
        return log_probs

    def of_version(
        self, versions: Mapping[int, Reference], rows: pl.DataFrame, version: int
    ) -> NDArray[np.float32]:
        """Return the log-probabilities of the rows' response tokens under another version."""
        self.load(versions[version], f"Version {version}")
        try:
            return flatten(self.values(rows, "log_probs", reference=True)[0])
        finally:
            self.group.load_reference(self.job.reference)

    def load(self, reference: Reference, name: str) -> None:
        """Load a model beside the trained one, if it fits into memory; an error has its `name`."""
        free = min(self.group.free_memory())
        require_memory(name, reference_size(reference.weights), free, SMALLER)
        self.group.load_reference(reference)


def flatten(values: list[torch.Tensor]) -> NDArray[np.float32]:
    """Return the values of all rows as one array."""
    return torch.cat(values).float().numpy()  # packed rows have entropies in bf16
