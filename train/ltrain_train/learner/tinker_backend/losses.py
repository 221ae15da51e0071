"""The comparison before an update, and the gradient of an optimizer step's loss.

The loss is that of the backend verl: the weighted mean over the tokens of the step. The API has two
of verl's losses with the same gradient. Every other loss is computed here by verl's function, and
its derivative D by each log-probability is sent as an importance-sampling loss: at the ratio 1 its
gradient is -advantage, so the advantage -D gives that of the loss.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ltrain_train.learner.drift import check_drift, measure_drift
from ltrain_train.learner.objective import Objective
from ltrain_train.learner.row_values import (
    CORRECTION,
    OLD,
    count_tokens,
    count_trained,
    split_values,
    total_weight,
    trained_weights,
    weighted_mean,
    with_values,
)
from ltrain_train.learner.samples import flat_values

Values = NDArray[np.float64]
NATIVE = {"vanilla": "ppo", "cispo": "cispo"}
"""The API's name of each loss that it has."""
DUAL_CLIP = 3.0
"""verl's default of `clip_ratio_c`, above which a negative advantage has no gradient."""
LINEAR = "importance_sampling"
CURRENT = "current_log_probs"
"""A further column: the log-probabilities under the weights before the update."""


@dataclass(frozen=True, slots=True)
class Compared:
    """The rows of each optimizer step with the columns that the loss needs."""

    steps: list[pl.DataFrame]
    metrics: dict[str, float]
    warnings: tuple[str, ...] = ()


def compare(
    steps_rows: list[pl.DataFrame],
    current: NDArray[np.float32],
    objective: Objective,
    version: int,
) -> Compared:
    """Return the rows, corrected and without rejected calls, and the metrics of the drift.

    Args:
        current: log-probabilities of all response tokens of all steps.

    Raises:
        PolicyDrift: when the sampling server is too far from the policy.
    """
    rows = with_values(pl.concat(steps_rows), **{CURRENT: current})
    metrics = {"learning_rate": objective.learning_rate}
    warning = None
    if objective.kind == "rl":
        drift = measure_drift(rows, current, version=version, outlier=objective.drift_outlier)
        warning = check_drift(drift, objective, version)
        metrics |= drift.metrics()
    if objective.kind == "sft" or (objective.correction, objective.rejection) == ("bypass", "none"):
        heights = [part.height for part in steps_rows]
        starts = np.cumsum([0, *heights[:-1]]).tolist()
        steps = [rows.slice(*each) for each in zip(starts, heights, strict=True)]
        return Compared(steps, metrics, tuple(filter(None, (warning,))))
    from ltrain_train.learner.verl_backend import comparison  # its corrections are verl's

    rows, correction_metrics = comparison.apply_correction(rows, current, objective)
    rows, rejection_metrics = comparison.apply_rejection(rows, current, objective)
    kept, rejected = comparison.keep_weighted(rows, steps_rows, objective)
    metrics |= correction_metrics | rejection_metrics
    return Compared(kept, metrics, tuple(filter(None, (warning, rejected))))


@dataclass(frozen=True, slots=True)
class Loss:
    """The request for an optimizer step, with flat arrays over its response tokens."""

    name: str
    """The API's loss."""
    log_probs: NDArray[Any]
    """Those from which it computes ratios."""
    advantages: Values
    """For a loss that is a sum over tokens."""
    metrics: dict[str, float]
    options: dict[str, float] = field(default_factory=dict)


def make_loss(rows: pl.DataFrame, current: NDArray[Any], objective: Objective) -> Loss:
    """Return the loss of an optimizer step.

    Args:
        current: log-probabilities of all response tokens under the weights before the step.
    """
    if objective.kind == "sft":
        weights = trained_weights(rows) / total_weight(rows)
        metrics = {"loss": -weighted_mean(rows, current)}
        return Loss(LINEAR, current, weights, metrics)
    if objective.loss in NATIVE:
        return _native_loss(rows, current.astype(np.float64), objective)
    return _linear_loss(rows, current, objective)


def _native_loss(rows: pl.DataFrame, current: Values, objective: Objective) -> Loss:
    old = flat_values(rows, OLD if OLD in rows.columns else "rollout_logprobs")
    low, high = 1 - objective.clip_ratio_low, 1 + objective.clip_ratio_high
    trained = flat_values(rows, "response_mask") > 0
    advantages = flat_values(rows, "advantages") * trained_weights(rows) / total_weight(rows)
    if CORRECTION in rows.columns:
        advantages = advantages * flat_values(rows, CORRECTION)
    difference = np.clip(current - old, -20.0, 20.0)
    ratio = np.exp(difference)
    clipped = ratio.clip(low, high)
    metrics = {"kl": -float(difference[trained].mean())}
    if objective.loss == "cispo":
        losses, is_clipped, is_low = -clipped * advantages * current, ratio != clipped, ratio < 0
    else:
        free, bound = -ratio * advantages, -clipped * advantages
        limit = objective.actor.clip_ratio_c or DUAL_CLIP
        losses, is_clipped = np.maximum(free, bound), bound > free
        is_low = (advantages < 0) & (losses > -limit * advantages)
        losses = np.where(is_low, -limit * advantages, losses)
        advantages = np.where(is_low, 0.0, advantages)
    metrics |= {
        "loss": float(losses[trained].sum()),
        "clip_fraction": float(is_clipped[trained].mean()),
        "clip_fraction_lower": float(is_low[trained].mean()),
    }
    options = {"clip_low_threshold": low, "clip_high_threshold": high}
    return Loss(NATIVE[objective.loss], old, advantages, metrics, options)


def _linear_loss(rows: pl.DataFrame, current: NDArray[Any], objective: Objective) -> Loss:
    """Return verl's loss, linear at the current log-probabilities."""
    slopes, metrics = _differentiate(rows, current, objective)
    return Loss(LINEAR, current, -slopes, metrics)


def _differentiate(
    rows: pl.DataFrame, log_probs: NDArray[Any], objective: Objective
) -> tuple[NDArray[np.float64], dict[str, float]]:
    """Return the derivative of the loss by the log-probability of each response token, and metrics.

    Args:
        log_probs: of all response tokens, row after row.
    """
    import torch

    from ltrain_train.learner.verl_backend import batch
    from ltrain_train.learner.verl_backend.loss import objective_loss

    data = batch.make_batch(rows, ranks=1, tokens=count_tokens(rows), shared=False)
    order = data.row_numbers  # one micro-batch has no padding
    scored = data.data["scored"].values().bool()
    flat = torch.zeros(len(scored))
    flat[scored] = torch.from_numpy(_reorder(rows, log_probs, order).astype(np.float32))
    flat.requires_grad_()
    # position i predicts token i + 1, and the loss rolls the values back
    output = {"log_probs": torch.nested.nested_tensor_from_jagged(
        flat.roll(-1), data.data["input_ids"].offsets()
    )}  # fmt: skip
    values = {name: data.data[name] for name in data.data.keys()}  # noqa: SIM118
    values |= {"objective": objective, "dp_size": 1, "batch_num_tokens": count_trained(rows)}
    loss, metrics = objective_loss(output, values)
    loss.backward()  # type: ignore[no-untyped-call]
    assert flat.grad is not None
    slopes = flat.grad[scored].numpy().astype(np.float64)
    back = _reorder(rows[order], slopes, np.argsort(order).tolist())
    numbers = {name: float(metric.aggregate()) for name, metric in metrics.items()}
    return back, {"loss": float(loss.detach())} | numbers


def _reorder(rows: pl.DataFrame, values: NDArray[Any], order: list[int]) -> NDArray[Any]:
    """Return the values of the response tokens of rows in another order of the rows."""
    parts = list(split_values(rows, values))
    return np.concatenate([parts[number] for number in order])
