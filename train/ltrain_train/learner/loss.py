"""Our aggregation around verl's policy losses: one sum over tokens for a whole optimizer step.

    loss = sum over tokens of weight x loss / sum over tokens of weight

over all micro-batches and all ranks, so that neither their number nor their sizes matter. The
weight multiplies the advantage, which is the same thing wherever the loss is homogeneous in it.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence

from ltrain_instrument.errors import UnknownName
from ltrain_train.learner import engine
from ltrain_train.learner.errors import BadLoss

UNSUPPORTED = {
    "geo_mean": "it averages over the rows of a micro-batch, whatever aggregation it is told",
    "bypass_mode": "it chooses among others by itself; name one, with correction = 'bypass'",
    "dro": "it needs verl's dro_beta, which a recipe has no key for",
}
"""Losses of verl that no recipe can name, and why."""
NOT_HOMOGENEOUS = {
    "clip_cov": "it picks tokens by their covariance with the advantage",
    "kl_cov": "it adds a penalty that the advantage does not scale",
}
"""Losses that twice the advantage does not make twice as large: a weight cannot be put there."""
PER_ROW = {"sapo"}
"""Losses that average within each row, whatever aggregation they are told: a token is a row."""
METRIC_NAMES = {
    "pg_clipfrac": "clip_fraction",
    "pg_clipfrac_lower": "clip_fraction_lower",
    "ppo_kl": "kl",
}
"""verl's metric, without its `actor/` -> ours."""


def check_loss(name: str, weigh: str) -> None:
    """Refuse a loss that does not exist or cannot be weighed as asked.

    Raises:
        BadLoss: which says why.
    """
    supported = set(engine.policy_losses()) - UNSUPPORTED.keys()
    if name in UNSUPPORTED:
        raise BadLoss(
            f"train.loss = '{name}': {UNSUPPORTED[name]}. Choose from: {_join(supported)}."
        )
    if name not in supported:
        raise BadLoss(f"train.loss: {UnknownName('policy loss', name, supported)}")
    if weigh != "token" and name in NOT_HOMOGENEOUS:
        raise BadLoss(
            f"train.weigh = '{weigh}' cannot go with train.loss = '{name}': "
            f"{NOT_HOMOGENEOUS[name]}. Set weigh = 'token', or choose from: "
            f"{_join(supported - NOT_HOMOGENEOUS.keys())}."
        )


class WeightedLoss:
    """The loss function that verl's engine calls on each micro-batch of N tokens in all."""

    def __init__(self, name: str, config: Any) -> None:
        self.name, self.config = name, config

    def __call__(
        self, model_output: Mapping[str, torch.Tensor], data: Any, dp_group: object = None
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        """Give this micro-batch's share of the step's loss, and of its metrics.

        The engine averages gradients over ranks, hence the factor `dp_size`.
        """
        mask_N = data["loss_mask"].values().bool()
        tokens = {
            # position i predicts token i + 1; what rolls over lands on a prompt's first token
            "log_prob": model_output["log_probs"].values().roll(1),
            "old_log_prob": data["old_log_probs"].values(),
            "advantages": data["advantages"].values(),
        }
        if "rollout_is_weights" in data.keys():  # noqa: SIM118 - a TensorDict iterates over its rows
            tokens["rollout_is_weights"] = data["rollout_is_weights"].values()
        lengths = data["loss_mask"].offsets().diff().tolist()
        inputs = {name: self._to_rows(x, mask_N, lengths) for name, x in tokens.items()}
        mask = self._to_rows(torch.ones_like(mask_N), mask_N, lengths)
        ranks, weights = data["dp_size"], data["weight_sum"]
        self.config.global_batch_info.update(
            dp_size=ranks, batch_num_tokens=weights, global_batch_size=weights
        )
        loss, metrics = engine.policy_loss(self.name)(
            **inputs, response_mask=mask, loss_agg_mode="token-mean", config=self.config
        )
        token_share = ranks * int(mask_N.sum()) / max(data["batch_num_tokens"], 1)
        return loss, {
            _name(k): engine.sum_metric(float(v) * token_share) for k, v in metrics.items()
        }

    def _to_rows(self, x_N: torch.Tensor, mask_N: torch.Tensor, lengths: list[int]) -> torch.Tensor:
        """Give rows of tokens, zero where there is none: [row, token]."""
        if self.name in PER_ROW:
            return x_N[mask_N].unsqueeze(1)
        masked = torch.where(mask_N, x_N, torch.zeros((), dtype=x_N.dtype, device=x_N.device))
        return pad_sequence(list(torch.split(masked, lengths)), batch_first=True)


def _name(metric: str) -> str:
    short = metric.removeprefix("actor/")
    return METRIC_NAMES.get(short, short)


def _join(names: set[str]) -> str:
    return ", ".join(sorted(names))
