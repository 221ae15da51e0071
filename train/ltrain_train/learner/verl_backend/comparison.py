"""Compares the learner's log-probabilities before an update with those of other policies.

The policies are the server, which sampled the tokens, and the reference. The results are columns
of the rows, which the loss reads, and metrics. All log-probabilities are flat arrays over the
response tokens of all rows.
"""

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from ltrain_train.learner import row_values
from ltrain_train.learner.objective import Objective
from ltrain_train.learner.samples import call_lengths, flat_values
from ltrain_train.learner.verl_backend import batch, engine

LogProbs = NDArray[np.float32]
Compared = tuple[pl.DataFrame, dict[str, float]]
"""The rows with further columns, and the metrics."""


def apply_correction(rows: pl.DataFrame, old: LogProbs, objective: Objective) -> Compared:
    """Make the learner's log-probabilities the old ones, and add the capped ratio to the server's.

    Nothing changes with the correction `bypass`.
    """
    if objective.correction == "bypass":
        return rows, {}
    lengths = call_lengths(rows)
    weights, metrics = engine.importance_weights(
        *_ratios_and_mask(rows, old, lengths),
        objective.correction.removesuffix("_tis"),
        objective.correction_cap,
    )
    columns = {row_values.OLD: old, row_values.CORRECTION: _flatten(weights, lengths)}
    return row_values.with_values(rows, **columns), metrics


def apply_rejection(rows: pl.DataFrame, old: LogProbs, objective: Objective) -> Compared:
    """Leave the tokens of the calls that the objective rejects out of the loss.

    The metrics are the rejected shares of the trained tokens, and of the calls that have some.
    """
    if objective.rejection == "none":
        return rows, {}
    lengths = call_lengths(rows)
    log_ratio, mask = _ratios_and_mask(rows, old, lengths)
    kept = engine.rejection_mask(log_ratio, mask, objective)
    metrics = {
        "rejected_tokens": 1 - float(kept.sum() / mask.sum()),
        "rejected_calls": 1 - float(kept.any(-1).sum() / mask.any(-1).sum()),
    }
    response_mask = _flatten(kept, lengths).astype(np.uint8)
    return row_values.with_values(rows, response_mask=response_mask), metrics


def apply_reference(
    rows: pl.DataFrame, old: LogProbs, reference: LogProbs, objective: Objective
) -> Compared:
    """Add the reference's log-probabilities, or subtract the divergence from the advantages.

    With `kl_in = "reward"` each token's advantage is lowered by the coefficient times the token's
    divergence: verl's `apply_kl_penalty`, which lowers the token's reward, without a return over
    later tokens. With a critic the token's reward is lowered, before its advantages are
    computed. The metric is the mean divergence before the update, weighted as the loss is.
    """
    estimates = engine.divergence(
        torch.from_numpy(old), torch.from_numpy(reference), objective.kl_estimator
    ).numpy()
    metrics = {"kl_reference": row_values.weighted_mean(rows, estimates)}
    if objective.kl_loss:
        return row_values.with_values(rows, **{row_values.REFERENCE: reference}), metrics
    penalty = objective.kl_coefficient * estimates
    column = "advantages" if objective.critic is None else "token_rewards"
    lowered = flat_values(rows, column) - penalty
    return row_values.with_values(rows, **{column: lowered.astype(np.float32)}), metrics


def keep_weighted(
    rows: pl.DataFrame, steps_rows: Sequence[pl.DataFrame], objective: Objective
) -> tuple[list[pl.DataFrame], str]:
    """Return the rows of the optimizer steps that have an accepted call, and a warning or ''.

    `steps_rows` are the rows of each step before anything was rejected.
    """
    counts = [step_rows.height for step_rows in steps_rows]
    starts = accumulate(counts, initial=0)
    parts = [rows.slice(*each) for each in zip(starts, counts, strict=False)]
    kept = [part for part in parts if row_values.total_weight(part) > 0]
    return kept, _describe_rejection(len(parts) - len(kept), len(parts), objective)


def _describe_rejection(rejected: int, steps: int, objective: Objective) -> str:
    """Return the warning about optimizer steps without an accepted call; empty if there is none."""
    if not rejected:
        return ""
    return (
        f"{rejected} of {steps} optimizer steps were left out, because every call in them was "
        f"rejected: with train.rejection = '{objective.rejection}', the probabilities of learner "
        f"and server may differ by a factor from {objective.rejection_min:g} to "
        f"{objective.rejection_max:g}. Look at the metrics drift_*, or widen train.rejection_min "
        "and rejection_max."
    )


def _ratios_and_mask(
    rows: pl.DataFrame, old: LogProbs, lengths: list[int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the log-ratios of learner to server and the mask of trained tokens, [call, token].

    A sequence of verl is a call here, whether its tokens are a row or a part of a merged row.
    """
    sampled = flat_values(rows, "rollout_logprobs")
    mask = flat_values(rows, "response_mask").astype(np.int64)
    log_ratio, trained = (
        batch.pad_calls(torch.tensor(flat), lengths) for flat in (old - sampled, mask)
    )
    return log_ratio, trained


def _flatten(padded: torch.Tensor, lengths: list[int]) -> NDArray[np.float32]:
    """Return the values of calls [call, token] as a flat array."""
    calls = zip(padded, lengths, strict=True)
    return torch.cat([call[:length] for call, length in calls]).numpy()
