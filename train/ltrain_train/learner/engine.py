"""verl's training worker, policy losses and importance correction.

Only this module, `prefix_tree.engine`, `critic.engine` and the plugin in `cpu_platform` use verl.
Every rank is one `RankWorker`: verl's FSDP2 engine with verl's remote methods, and `export`.
"""

import os
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import distributed
from verl.single_controller.base import decorator
from verl.single_controller.ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup
from verl.trainer.config import CheckpointConfig
from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY, kl_penalty
from verl.trainer.ppo.rollout_corr_helper import (
    compute_rollout_correction_weights,
    compute_rollout_rejection_mask,
)
from verl.utils import tensordict_utils
from verl.utils.fsdp_utils import (
    collect_lora_params,
    merged_lora_context,
    normalize_peft_param_name,
)
from verl.utils.metric import AggregationType, Metric
from verl.utils.model import convert_weight_keys
from verl.workers.config import (
    FSDPActorConfig,
    FSDPEngineConfig,
    FSDPOptimizerConfig,
    HFModelConfig,
    PolicyLossConfig,
    TrainingWorkerConfig,
)
from verl.workers.engine_workers import TrainingWorker

from ltrain_train.learner import cluster
from ltrain_train.learner.adapter import write_adapter
from ltrain_train.learner.critic import engine as critic_engine
from ltrain_train.learner.device import current_device
from ltrain_train.learner.heartbeat import beat_on_forward
from ltrain_train.learner.objective import Objective
from ltrain_train.learner.placement import Placement
from ltrain_train.learner.prefix_tree import engine as prefix_tree_engine
from ltrain_train.learner.prefix_tree import supports_prefix_tree
from ltrain_train.learner.protocol import Job
from ltrain_train.learner.weights import write_weights
from ltrain_train.policy import read_adapter_config, read_config

verl_decorator: Any = decorator
Method = TypeVar("Method", bound=Callable[..., Any])
PolicyLoss = Callable[..., tuple[torch.Tensor, dict[str, Any]]]
ENGINE_DEFAULTS = {"use_torch_compile": False, "entropy_from_logits_with_chunking": True}
OPTIMIZER_DEFAULTS = {"weight_decay": 0.0}
"""Options whose defaults are not verl's."""
LORA_TARGETS = "all-linear"
"""Modules that get a LoRA adapter."""


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
    """Return the batch with what it is trained for."""
    needs_entropy = objective.kind == "rl" and objective.entropy_coefficient > 0
    return tensordict_utils.assign_non_tensor(
        batch, objective=objective, calculate_entropy=needs_entropy
    )


def as_inference_batch(batch: Any, *, entropy: bool = False, adapter: bool = True) -> Any:
    """Return the batch marked for inference: log-probabilities without a loss.

    Args:
        batch: of the engine.
        entropy: also compute entropies.
        adapter: use the model with its adapter, if it has one.
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


def shares_prefixes(job: Job) -> bool:
    """Return whether this job's model computes the common prefix of rows once."""
    return supports_prefix_tree(read_config(job.base))


def on_every_rank(method: Method) -> Method:
    """Register a worker's method with its group: each rank runs it with the same arguments."""
    registered: Method = verl_decorator.register(dispatch_mode=verl_decorator.Dispatch.ONE_TO_ALL)(
        method
    )
    return registered


def on_parts_of_a_batch(method: Method) -> Method:
    """Register a worker's method with its group: each rank runs it with its part of the batch."""
    dispatch = verl_decorator.make_nd_compute_dataproto_dispatch_fn(mesh_name="train")
    registered: Method = verl_decorator.register(dispatch_mode=dispatch, blocking=False)(method)
    return registered


class RankWorker(TrainingWorker):
    """One rank of the trainer."""

    def __init__(self, job: Job) -> None:
        torch.manual_seed(job.seed)
        if job.ray_address is not None:
            cluster.use_node_interface()
        if backend := current_device().process_group:
            rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
            init_method = os.environ.get("DIST_INIT_METHOD")
            distributed.init_process_group(backend, init_method, rank=rank, world_size=world)
        if shares_prefixes(job):
            os.environ["VERL_ENGINE_VENDOR"] = prefix_tree_engine.VENDOR
        self.job = job
        self.reference: TrainingWorker | None = None
        self.critic: Any = None
        super().__init__(_worker_config(job))
        if job.scratch is not None:
            beat_on_forward(job.scratch)

    @on_every_rank
    def restart(self) -> None:
        """Load the base model again, with the adapter and the optimizer of the start."""
        self._initialize(self.engine)

    @on_every_rank
    def restart_critic(self) -> None:
        """Load the base model with a new value head and optimizer."""
        self._initialize(self.critic.engine)

    def _initialize(self, engine: Any) -> None:
        # the old ones are freed first, because two models may not fit into memory
        engine.module = engine.optimizer = engine.lr_scheduler = engine.checkpoint_manager = None
        torch.manual_seed(self.job.seed)
        engine.initialize()

    @on_every_rank
    def free_memory(self) -> int:
        """Return the free bytes for a model that all ranks share."""
        return current_device().free_memory(self.job.ranks)

    @on_every_rank
    def load_reference(self) -> None:
        """Load the job's reference beside the trained model."""
        reference = self.job.reference
        if reference is None:
            return
        rank = read_adapter_config(reference.adapter).r if reference.adapter is not None else 0
        job = replace(self.job, base=reference.weights, adapter=reference.adapter, lora_rank=rank)
        self.reference = TrainingWorker(_worker_config(job))
        self.reference.reset()

    @on_parts_of_a_batch
    def infer_reference(self, data: Any) -> Any:
        """Return what `infer_batch` returns, under the reference that was loaded."""
        reference: Any = self.reference
        return reference.infer_batch(data)

    @on_every_rank
    def load_critic(self) -> None:
        """Load the base with a value head beside the trained model."""
        if not shares_prefixes(self.job):
            os.environ["VERL_ENGINE_VENDOR"] = critic_engine.ROWS_VENDOR
        self.critic = TrainingWorker(_worker_config(replace(self.job, adapter=None), critic=True))
        self.critic.reset()
        self.critic.set_loss_fn(critic_engine.value_loss)

    @on_parts_of_a_batch
    def infer_values(self, data: Any) -> Any:
        """Return the critic's values of the batch."""
        return self.critic.infer_batch(data)

    @on_every_rank
    def save_critic(self, directory: Path) -> None:
        """Write the critic's part of a checkpoint."""
        self.critic.save_checkpoint(str(directory))
        if self.job.lora_rank:
            critic_engine.save_head(self.critic.engine.module, directory)

    @on_every_rank
    def load_critic_checkpoint(self, directory: Path) -> None:
        """Load what `save_critic` wrote."""
        self.critic.load_checkpoint(str(directory))
        if self.job.lora_rank:
            critic_engine.load_head(self.critic.engine.module, directory)

    @on_parts_of_a_batch
    def train_batch(self, data: Any) -> Any:
        """Make one optimizer step, with the settings of the batch's objective."""
        objective: Objective = data["objective"]
        _set_optimizer(self.engine, objective.learning_rate, objective.gradient_clip)
        return super().train_batch(data)

    @on_parts_of_a_batch
    def train_critic(self, data: Any) -> Any:
        """Make one optimizer step of the critic, with the settings of the batch's objective."""
        objective: Objective = data["objective"]
        _set_optimizer(self.critic.engine, objective.critic_rate, objective.gradient_clip)
        return self.critic.train_batch(data)

    @on_every_rank
    def export(self, directory: Path, dtype: str) -> list[str]:
        """Write the weights, with a merged adapter, as safetensors in `directory`.

        Every rank gathers every tensor; only the first rank writes.

        Returns:
            the names of the tensors with a number that is not finite.
        """
        engine: Any = self.engine
        module = engine.module
        lora = hasattr(module, "peft_config")
        with merged_lora_context(module, backup_adapters=True) if lora else nullcontext():
            state = normalize_peft_param_name(module.state_dict())
            tensors = ((k, _gather(x)) for k, x in convert_weight_keys(state, module).items())
            bad = write_weights(directory, tensors, dtype=dtype, write=distributed.get_rank() == 0)
        distributed.barrier()
        return bad

    @on_every_rank
    def export_adapter(self, directory: Path) -> list[str]:
        """Write the adapter as it is, in PEFT's layout.

        Returns:
            the names of the tensors with a number that is not finite.
        """
        engine: Any = self.engine
        module = engine.module
        tensors = collect_lora_params(module, layered_summon=False, base_sync_done=True)
        whole = [(name, _gather(tensor)) for name, tensor in tensors.items()]
        bad: list[str] = []
        if distributed.get_rank() == 0:
            bad = write_adapter(directory, whole, module.peft_config["default"].to_dict())
        distributed.barrier()
        return bad


def _set_optimizer(engine: Any, learning_rate: float, gradient_clip: float) -> None:
    for group in engine.optimizer.param_groups:
        group["lr"] = learning_rate
    engine.optimizer_config.clip_grad = gradient_clip


def _gather(tensor: torch.Tensor) -> torch.Tensor:
    gather = getattr(tensor, "full_tensor", None)
    return gather() if gather else tensor


def make_worker_group(job: Job, placement: Placement) -> Any:
    """Return a verl worker group of `job.ranks` ranks, its model loaded."""
    device = current_device()
    pool: Any = RayResourcePool([job.ranks], use_gpu=device.one_rank_each, max_colocate_count=1)
    if placement.group is not None:
        pool.pgs = [placement.group]
    group: Any = RayWorkerGroup(
        resource_pool=pool,
        ray_cls_with_init=RayClassWithInitArgs(cls=cluster.as_actor_class(RankWorker), job=job),
        device_name=device.name,
        name_prefix=cluster.GROUP,
        master_addr=placement.address,
        master_port=placement.port and str(placement.port),
    )
    group.restart()
    return group


def _worker_config(job: Job, *, critic: bool = False) -> Any:
    device = current_device()
    dtype = device.compute_dtype(job.dtype)
    precision = {"param_dtype": dtype, "reduce_dtype": "fp32", "buffer_dtype": "fp32"}
    return TrainingWorkerConfig(
        model_type=critic_engine.MODEL_TYPE if critic else "language_model",
        model_config=HFModelConfig(
            path=str(job.base),
            load_tokenizer=False,
            override_config={
                "attn_implementation": device.tree_attention if shares_prefixes(job) else "sdpa"
            },
            use_remove_padding=True,
            enable_gradient_checkpointing=device.gradient_checkpointing,
            lora_rank=job.lora_rank,
            lora_alpha=job.lora_alpha,
            target_modules=LORA_TARGETS,
            lora_adapter_path=None if job.adapter is None else str(job.adapter),
        ),
        engine_config=FSDPEngineConfig(
            strategy="fsdp2",
            seed=job.seed,
            use_dynamic_bsz=False,
            mixed_precision=precision,
            **(ENGINE_DEFAULTS | job.verl.engine.options()),
        ),
        # each batch's objective has the learning rate and the bound of the gradient
        optimizer_config=FSDPOptimizerConfig(
            total_training_steps=1, **(OPTIMIZER_DEFAULTS | job.verl.optimizer.options())
        ),
        checkpoint_config=CheckpointConfig(save_lora_only=True),
    )
