"""Compares the learner's log-probabilities before an update with those of other policies.

The policies are the server, which sampled the tokens, and the reference. The results are columns
of the rows, which the loss reads, and metrics. All log-probabilities are flat arrays over the
response tokens of all rows.
"""

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from ltrain_train.learner import batch, engine
from ltrain_train.learner.objective import Objective

LogProbs = NDArray[np.float32]
Compared = tuple[pl.DataFrame, dict[str, float]]
"""The rows with further columns, and the metrics."""


def apply_correction(rows: pl.DataFrame, old: LogProbs, objective: Objective) -> Compared:
    """Make the learner's log-probabilities the old ones, and add the capped ratio to the server's.

    Nothing changes with the correction `bypass`.
    """
    if objective.correction == "bypass":
        return rows, {}
    log_ratio = torch.tensor(old - batch.flat_values(rows, "rollout_logprobs")).unsqueeze(0)
    mask = torch.tensor(batch.flat_values(rows, "response_mask").astype(np.int64)).unsqueeze(0)
    weights, metrics = engine.truncated_ratio(log_ratio, mask, objective.correction_cap)
    columns = {batch.OLD: old, batch.CORRECTION: weights[0].numpy()}
    return batch.with_values(rows, **columns), metrics


def apply_reference(
    rows: pl.DataFrame, old: LogProbs, reference: LogProbs, objective: Objective
) -> Compared:
    """Add the reference's log-probabilities, or subtract the divergence from the advantages.

    With `kl_in = "reward"` each token's advantage is lowered by the coefficient times the token's
    divergence: verl's `apply_kl_penalty`, which lowers the token's reward, without a return over
    later tokens. The metric is the mean divergence before the update, weighted as the loss is.
    """
    estimates = engine.divergence(
        torch.from_numpy(old), torch.from_numpy(reference), objective.kl_estimator
    ).numpy()
    metrics = {"kl_reference": batch.weighted_mean(rows, estimates)}
    if objective.kl_loss:
        return batch.with_values(rows, **{batch.REFERENCE: reference}), metrics
    penalty = objective.kl_coefficient * estimates
    advantages = batch.flat_values(rows, "advantages") - penalty
    return batch.with_values(rows, advantages=advantages.astype(np.float32)), metrics
