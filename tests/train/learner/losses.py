"""Aggregates each loss of verl that a recipe can name: `python losses.py` prints JSON.

For each: the loss and the gradient of one batch, of the same rows in three micro-batches and of
two ranks; and how much they change when one row is there twice, or once with twice the weight.
"""

import functools
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any, get_type_hints

import torch
from tensordict import NonTensorData, TensorDict
from torch import Tensor
from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY
from verl.workers.config import (
    FSDPActorConfig,
    FSDPEngineConfig,
    FSDPOptimizerConfig,
    PolicyLossConfig,
)
from verl.workers.utils.losses import sft_loss

from ltrain_train.learner.objective import Objective
from ltrain_train.learner.verl_backend import engine
from ltrain_train.learner.verl_backend.loss import objective_loss
from ltrain_transforms.recipe import KL_ESTIMATORS, POLICY_LOSSES, Train

LENGTHS = (5, 9, 3, 7, 2, 6)

Row = dict[str, Tensor]
Loss = Callable[..., tuple[Tensor, dict[str, Any]]]


def policy_losses() -> list[str]:
    """Return the names of verl's policy losses."""
    return sorted(POLICY_LOSS_REGISTRY)


def option_types() -> dict[str, dict[str, str]]:
    """Return the options of verl's configurations and their types, by the recipe's sections."""
    configs = {
        "actor": FSDPActorConfig,
        "policy_loss": PolicyLossConfig,
        "optimizer": FSDPOptimizerConfig,
        "engine": FSDPEngineConfig,
    }
    return {
        section: {
            name: str(kind) for name, kind in get_type_hints(config).items() if name[0] != "_"
        }
        for section, config in configs.items()
    }


def jagged(rows: list[Tensor]) -> Tensor:
    return torch.nested.nested_tensor_from_jagged(
        torch.cat(rows), torch.tensor([0, *map(len, rows)]).cumsum(0)
    )


def make_rows(seed: int = 0) -> list[Row]:
    torch.manual_seed(seed)
    rows = []
    for length in LENGTHS:
        mask = torch.tensor([0] + [1] * (length - 1))
        old = -6 + torch.rand(length)
        rows.append(
            {
                "loss_mask": mask,
                "call_starts": torch.tensor([1] + [0] * (length - 1)),
                "old_log_probs": old * mask,
                "advantages": torch.randn(length) * mask,
                "log_probs": (old + 0.3 * torch.randn(length)).roll(-1),
                "weight": torch.rand(length) * mask,
            }
        )
    return rows


def micro_batch_loss(
    objective: Objective,
    rows: list[Row],
    weight_sum: float,
    tokens: int,
    ranks: int,
    function: Loss = objective_loss,
) -> tuple[float, Tensor]:
    """Return one micro-batch's loss and the gradient of its rows' log-probabilities."""
    fields: dict[str, Any] = {
        k: jagged([row[k] for row in rows]) for k in ("loss_mask", "call_starts", "old_log_probs")
    }
    fields["advantages"] = jagged([row["advantages"] * row["weight"] for row in rows])
    fields["weights"] = jagged([row["weight"] for row in rows])
    options: dict[str, Any] = {"objective": objective, "weight_sum": weight_sum}
    options |= {"dp_size": ranks, "batch_num_tokens": tokens}
    fields |= {k: NonTensorData(v) for k, v in options.items()}
    flat = torch.cat([row["log_probs"] for row in rows]).requires_grad_()
    offsets = fields["loss_mask"].offsets()
    output = {"log_probs": torch.nested.nested_tensor_from_jagged(flat, offsets)}
    value, _ = function(model_output=output, data=TensorDict(fields, batch_size=[len(rows)]))
    (gradient,) = torch.autograd.grad(value, flat)
    return float(value), gradient


def step_losses(objective: Objective, parts: list[list[Row]], ranks: int = 1) -> list[float]:
    """Return the loss and the gradient of a step, averaged over ranks as FSDP does."""
    rows = [row for part in parts for row in part]
    weights = float(sum(row["weight"].sum() for row in rows))
    tokens = int(sum(row["loss_mask"].sum() for row in rows))
    results = [micro_batch_loss(objective, part, weights, tokens, ranks) for part in parts]
    value = sum(v for v, _ in results) / ranks
    return [value, *(torch.cat([g for _, g in results]) / ranks).tolist()]


def merged_and_separate(objective: Objective) -> tuple[list[float], list[float]]:
    """Return the losses and gradients of two calls in one row, and of the same calls in two rows.

    The row is a prompt of 2 tokens, a call of 4, 3 tokens of a tool and a call of 5.
    """
    torch.manual_seed(1)
    starts, mask = torch.zeros(2, 14, dtype=torch.int64)
    mask[2:6] = mask[9:] = 1
    starts[0] = starts[9] = 1
    old = -6 + torch.rand(14)
    merged = {
        "loss_mask": mask,
        "call_starts": starts,
        "old_log_probs": old * mask,
        "advantages": torch.where(torch.arange(14) < 6, 1.0, -1.0) * mask,
        "log_probs": (old + 0.3 * torch.randn(14)).roll(-1),
        "weight": torch.rand(14) * mask,
    }
    first = {name: values[:6].clone() for name, values in merged.items()}
    second = {name: values.clone() for name, values in merged.items()}
    for name in ("loss_mask", "old_log_probs", "advantages", "weight"):
        second[name][:6] = 0
    second["call_starts"][9] = 0
    together, apart = step_losses(objective, [[merged]]), step_losses(objective, [[first, second]])
    [value, *gradient] = apart
    for i in range(5):  # the last token of a row predicts nothing
        gradient[6 + i] += gradient[i]
    return together, [value, *gradient[6:]]


def measure(name: str) -> dict[str, Any]:
    objective = Objective.from_train(Train(loss=name))
    rows = make_rows()
    same = functools.partial(step_losses, objective)
    twice = [rows[0] | {"weight": 2 * rows[0]["weight"]}, *rows[1:]]
    return {
        "one": same([rows]),
        "three": same([rows[:1], rows[1:4], rows[4:]]),
        "ranks": same([rows[:3], rows[3:]], ranks=2),
        "heavy": same([twice])[0],
        "copied": same([[rows[0], *rows]])[0],
        "calls": merged_and_separate(objective),
    }


def cross_entropies() -> list[list[float]]:
    """Return the loss and the gradient of `sft` with weights of 1, and those of verl's SFT."""
    objective = replace(Objective.from_train(Train()), kind="sft")
    rows = [row | {"weight": row["loss_mask"].float()} for row in make_rows()]
    tokens = int(sum(row["loss_mask"].sum() for row in rows))
    functions: list[Loss] = [
        objective_loss,
        functools.partial(sft_loss, engine.loss_config(objective)),
    ]
    results = [
        micro_batch_loss(objective, rows, float(tokens), tokens, 1, function)
        for function in functions
    ]
    return [[value, *gradient.tolist()] for value, gradient in results]


def divergences() -> dict[str, list[float]]:
    """Return the value and the gradient of each estimator where the policy's d is 0.5."""
    result = {}
    for name in KL_ESTIMATORS:
        log_prob = torch.tensor([-1.0], requires_grad=True)
        value = engine.divergence(log_prob, torch.tensor([-1.5]), name)
        (gradient,) = torch.autograd.grad(value, log_prob)
        result[name] = [float(value), float(gradient)]
    return result


if __name__ == "__main__":
    fit = [name for name, each in POLICY_LOSSES.items() if not each.needs_token_weighting]
    measured = {name: measure(name) for name in sorted(fit)}
    result: dict[str, Any] = {"measured": measured, "registry": policy_losses()}
    result |= {"options": option_types(), "cross-entropy": cross_entropies()}
    result |= {"divergences": divergences()}
    json.dump(result, sys.stdout)
