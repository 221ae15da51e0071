"""verl's worker group, policy losses and importance correction."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from verl.single_controller.ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup
from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY, kl_penalty
from verl.trainer.ppo.rollout_corr_helper import (
    compute_rollout_correction_weights,
    compute_rollout_rejection_mask,
)
from verl.utils import tensordict_utils
from verl.utils.metric import AggregationType, Metric
from verl.workers.config import FSDPActorConfig, PolicyLossConfig

from ltrain_train.learner.objective import Objective
from ltrain_train.learner.protocol import Job
from ltrain_train.learner.verl_backend import cluster
from ltrain_train.learner.verl_backend.device import current_device
from ltrain_train.learner.verl_backend.placement import Placement
from ltrain_train.learner.verl_backend.rank import LocalGroup, RankWorker

PolicyLoss = Callable[..., tuple[torch.Tensor, dict[str, Any]]]


def policy_loss(name: str) -> PolicyLoss:
    """Return verl's policy loss of that name."""
    loss: PolicyLoss = POLICY_LOSS_REGISTRY[name]
    return loss


@lru_cache(maxsize=1)
def loss_config(objective: Objective) -> Any:
    """Return the configuration that verl's losses read besides their tensors."""
    options = objective.actor.options()
    options["policy_loss"] = PolicyLossConfig(
        loss_mode=objective.loss, **options.pop("policy_loss")
    )
    return FSDPActorConfig(
        strategy="fsdp2",
        rollout_n=1,
        use_dynamic_bsz=True,
        clip_ratio_low=objective.clip_ratio_low,
        clip_ratio_high=objective.clip_ratio_high,
        **options,
    )


def divergence(log_prob: torch.Tensor, reference: torch.Tensor, estimator: str) -> torch.Tensor:
    """Return verl's estimate of each token's KL divergence from the reference's distribution."""
    estimate: Callable[..., torch.Tensor] = kl_penalty  # it is typed as if on a CPU in fp32 only
    return estimate(log_prob, reference, estimator)


def sum_metric(value: float) -> Any:
    """Return a metric that verl sums over micro-batches and averages over ranks."""
    return Metric(value=value, aggregation=AggregationType.SUM)


def importance_weights(
    log_ratio: torch.Tensor, mask: torch.Tensor, level: str, cap: float
) -> tuple[torch.Tensor, dict[str, float]]:
    """Return verl's truncated importance weights, and their metrics.

    Args:
        log_ratio: of learner to server, [call, token].
        mask: 1 for trained tokens, [call, token].
        level: `token`, or `sequence` for the product over a call.
        cap: upper bound of the weights.

    Returns:
        the weights [call, token].
    """
    weights, metrics = compute_rollout_correction_weights(log_ratio, mask, level, cap)
    names = ("rollout_is_mean", "rollout_is_max", "rollout_is_eff_sample_size")
    return weights, {name: float(metrics[name]) for name in names}


def rejection_mask(
    log_ratio: torch.Tensor, mask: torch.Tensor, objective: Objective
) -> torch.Tensor:
    """Return the mask [call, token] without the tokens of the calls that the objective rejects.

    `geometric` is verl's `seq_mean_k1`. `token_veto` rejects a call if verl's `token_k1` rejects
    one of its tokens.
    """
    options = {"geometric": "seq_mean_k1", "token_veto": "token_k1"}
    # verl compares the ratio of server to learner with these bounds
    bounds = f"{1 / objective.rejection_max}_{1 / objective.rejection_min}"
    kept, _ = compute_rollout_rejection_mask(log_ratio, mask, options[objective.rejection], bounds)
    accepted: torch.Tensor = (kept == mask).all(dim=-1, keepdim=True)
    return mask * accepted


def as_training_batch(batch: Any, objective: Objective) -> Any:
    """Return the batch with its objective."""
    needs_entropy = objective.kind == "rl" and objective.entropy_coefficient > 0
    return tensordict_utils.assign_non_tensor(
        batch, objective=objective, calculate_entropy=needs_entropy
    )


def as_inference_batch(batch: Any, *, entropy: bool = False, adapter: bool = True) -> Any:
    """Return the batch marked for inference: log-probabilities without a loss.

    With `adapter` the model is used with its adapter, if it has one.
    """
    return tensordict_utils.assign_non_tensor(
        batch, compute_loss=False, calculate_entropy=entropy, no_lora_adapter=not adapter
    )


def read_metrics(output: Any) -> dict[str, float]:
    """Return the metrics of one `train_batch`, each over all its micro-batches and ranks."""
    metrics = tensordict_utils.get(output, "metrics")
    return {name: _number(value) for name, value in metrics.items() if not name.startswith("perf/")}


def _number(value: Any) -> float:
    if isinstance(value, list):
        return float(Metric.aggregate_dp(value))
    return float(value.aggregate() if isinstance(value, Metric) else value)


def make_worker_group(job: Job, placement: Placement | None) -> Any:
    """Return a group of `job.ranks` ranks with the model loaded.

    Without a placement the only rank runs in this process, without Ray.
    """
    group: Any = LocalGroup(job) if placement is None else _make_ray_group(job, placement)
    group.restart()
    return group


def _make_ray_group(job: Job, placement: Placement) -> Any:
    device = current_device()
    pool: Any = RayResourcePool([job.ranks], use_gpu=device.one_rank_each, max_colocate_count=1)
    if placement.group is not None:
        pool.pgs = [placement.group]
    return RayWorkerGroup(
        resource_pool=pool,
        ray_cls_with_init=RayClassWithInitArgs(cls=cluster.as_actor_class(RankWorker), job=job),
        device_name=device.name,
        name_prefix=cluster.GROUP,
        master_addr=placement.address,
        master_port=placement.port and str(placement.port),
    )
