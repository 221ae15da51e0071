"""Aggregates verl's policy losses into one weighted mean over the tokens of an optimizer step.

    loss = sum of weight x (policy loss - entropy_coefficient x entropy + kl_coefficient x KL)
           / sum of weight, both over all tokens

The sums run over all micro-batches and all ranks, so their number and sizes do not matter. In the
policy loss the weight multiplies the advantage, which is equivalent if that loss is homogeneous in
the advantage. The loss of `sft` is the cross-entropy, - log-probability, in place of all three.
"""

from collections.abc import Mapping
from typing import Any

import torch

from ltrain_train.learner.objective import Objective
from ltrain_train.learner.row_values import REFERENCE
from ltrain_train.learner.verl_backend import engine
from ltrain_train.learner.verl_backend.batch import pad_calls
from ltrain_transforms.recipe import POLICY_LOSSES

METRIC_NAMES = {
    "pg_clipfrac": "clip_fraction",
    "pg_clipfrac_lower": "clip_fraction_lower",
    "ppo_kl": "kl",
}
"""verl's metric name, without `actor/`, to ltrain's."""


def objective_loss(
    model_output: Mapping[str, torch.Tensor], data: Any, dp_group: object = None
) -> tuple[torch.Tensor, dict[str, Any]]:
    """Return one micro-batch's part of its step's loss, and of the metrics.

    verl's engine calls it on each micro-batch of N tokens. It is set once and reads the objective
    from the batch: verl's Tinker recipe found that exchanging the loss function between steps is
    unreliable. The engine averages gradients over ranks, hence the factor `dp_size`.
    """
    objective: Objective = data["objective"]
    mask_N = data["loss_mask"].values().bool()
    # position i predicts token i + 1; a value that wraps around hits a prompt's first token
    log_prob_N = model_output["log_probs"].values().roll(1)
    if objective.kind == "sft":
        return -_weighted_mean(log_prob_N[mask_N], data), {}
    loss, metrics = _policy_loss(objective, log_prob_N, data)
    if objective.entropy_coefficient:
        entropy_N = model_output["entropy"].values().roll(1)
        loss = loss - objective.entropy_coefficient * _weighted_mean(entropy_N[mask_N], data)
    if objective.kl_loss:
        reference_N = data[REFERENCE].values()
        kl = engine.divergence(log_prob_N[mask_N], reference_N[mask_N], objective.kl_estimator)
        loss = loss + objective.kl_coefficient * _weighted_mean(kl, data)
    token_share = data["dp_size"] * int(mask_N.sum()) / max(data["batch_num_tokens"], 1)
    return loss, {_name(k): engine.sum_metric(float(v) * token_share) for k, v in metrics.items()}


def _policy_loss(
    objective: Objective, log_prob_N: torch.Tensor, data: Any
) -> tuple[torch.Tensor, dict[str, Any]]:
    """Return the micro-batch's part of verl's policy loss, and verl's metrics of its tokens."""
    mask_N = data["loss_mask"].values().bool()
    tokens = {
        "log_prob": log_prob_N,
        "old_log_prob": data["old_log_probs"].values(),
        "advantages": data["advantages"].values(),
    }
    if "rollout_is_weights" in data.keys():  # noqa: SIM118 - a TensorDict iterates over its rows
        tokens["rollout_is_weights"] = data["rollout_is_weights"].values()
    if POLICY_LOSSES[objective.loss].per_row:
        inputs = {name: x[mask_N].unsqueeze(1) for name, x in tokens.items()}
        mask = torch.ones_like(inputs["log_prob"], dtype=torch.bool)
    else:
        lengths = _call_lengths(data["call_starts"].values())
        inputs = {name: _to_calls(x, mask_N, lengths) for name, x in tokens.items()}
        mask = _to_calls(torch.ones_like(mask_N), mask_N, lengths)
    config = engine.loss_config(objective)
    config.global_batch_info.update(
        dp_size=data["dp_size"],
        batch_num_tokens=data["weight_sum"],
        global_batch_size=data["weight_sum"],
    )
    return engine.policy_loss(objective.loss)(
        **inputs, response_mask=mask, loss_agg_mode="token-mean", config=config
    )


def _weighted_mean(trained: torch.Tensor, data: Any) -> torch.Tensor:
    """Return the micro-batch's part of the weighted mean of a value of the step's trained tokens.

    verl's engine averages over ranks.
    """
    weights: torch.Tensor = data["weights"].values()[data["loss_mask"].values().bool()]
    return (trained * weights).sum() / float(data["weight_sum"]) * int(data["dp_size"])


def _to_calls(x_N: torch.Tensor, mask_N: torch.Tensor, lengths: list[int]) -> torch.Tensor:
    """Return the values as [call, token], zero where a token is not trained.

    `lengths` are those of the calls, so that a ratio of a whole sequence is that of one call,
    whether its tokens are a row or a part of a merged row.
    """
    masked = torch.where(mask_N, x_N, torch.zeros((), dtype=x_N.dtype, device=x_N.device))
    return pad_calls(masked, lengths)


def _call_lengths(starts_N: torch.Tensor) -> list[int]:
    """Return the number of tokens from each start of a call to the next one or the end."""
    starts = starts_N.nonzero()[:, 0]
    end = torch.tensor([len(starts_N)], device=starts.device)
    lengths: list[int] = torch.cat([starts, end]).diff().tolist()
    return lengths


def _name(metric: str) -> str:
    short = metric.removeprefix("actor/")
    return METRIC_NAMES.get(short, short)
