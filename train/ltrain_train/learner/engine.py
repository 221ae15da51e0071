"""verl's training worker, policy losses and importance correction.

Only this module, the engine in `tree_engine` and the plugin in `platform` use verl. Every rank is
one `RankWorker`: verl's FSDP2 engine with verl's remote methods, and `export`.
"""

import os
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import distributed
from verl.single_controller.base import decorator
from verl.single_controller.ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup
from verl.trainer.config import CheckpointConfig
from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_weights
from verl.utils import tensordict_utils
from verl.utils.device import get_device_name
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

from ltrain_train.learner import cluster, prefix_tree_engine
from ltrain_train.learner.adapter import write_adapter
from ltrain_train.learner.heartbeat import beat_on_forward
from ltrain_train.learner.prefix_tree import supports_prefix_tree
from ltrain_train.learner.prefix_tree_attention import attention_name
from ltrain_train.learner.protocol import Job
from ltrain_train.learner.weights import write_weights
from ltrain_train.policy import fast_dtype, read_config
from ltrain_transforms.recipe import Train

verl_decorator: Any = decorator
Method = TypeVar("Method", bound=Callable[..., Any])
PolicyLoss = Callable[..., tuple[torch.Tensor, dict[str, Any]]]
LORA_TARGETS = "all-linear"
"""Modules that get a LoRA adapter."""


def policy_losses() -> list[str]:
    """Return the names of verl's policy losses."""
    return sorted(POLICY_LOSS_REGISTRY)


def policy_loss(name: str) -> PolicyLoss:
    """Return verl's policy loss of that name."""
    loss: PolicyLoss = POLICY_LOSS_REGISTRY[name]
    return loss


def loss_config(train: Train) -> Any:
    """Return the configuration that verl's losses read besides their tensors."""
    return FSDPActorConfig(
        strategy="fsdp2",
        rollout_n=1,
        use_dynamic_bsz=True,
        clip_ratio_low=train.clip_ratio_low,
        clip_ratio_high=train.clip_ratio_high,
        policy_loss=PolicyLossConfig(loss_mode=train.loss),
    )


def sum_metric(value: float) -> Any:
    """Return a metric that verl sums over micro-batches and averages over ranks."""
    return Metric(value=value, aggregation=AggregationType.SUM)


def truncated_ratio(
    log_ratio: torch.Tensor, mask: torch.Tensor, cap: float
) -> tuple[torch.Tensor, dict[str, float]]:
    """Return verl's token-level truncated importance weights [row, token], and their metrics."""
    ratio, metrics = compute_rollout_correction_weights(log_ratio, mask, "token", cap)
    names = ("rollout_is_mean", "rollout_is_max", "rollout_is_eff_sample_size")
    return ratio, {name: float(metrics[name]) for name in names}


def as_inference_batch(batch: Any) -> Any:
    """Return the batch marked for inference: log-probabilities without a loss."""
    return tensordict_utils.assign_non_tensor(batch, compute_loss=False, calculate_entropy=False)


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


class RankWorker(TrainingWorker):
    """One rank of the trainer."""

    def __init__(self, job: Job) -> None:
        torch.manual_seed(job.seed)
        if get_device_name() == "cpu":  # verl would request the backend `cpu:gloo,cpu:gloo`
            rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
            init_method = os.environ.get("DIST_INIT_METHOD")
            distributed.init_process_group("gloo", init_method, rank=rank, world_size=world)
        if shares_prefixes(job):
            os.environ["VERL_ENGINE_VENDOR"] = prefix_tree_engine.VENDOR
        self.seed = job.seed
        super().__init__(_worker_config(job))
        if job.scratch is not None:
            beat_on_forward(job.scratch)

    @on_every_rank
    def restart(self) -> None:
        """Load the base model again, with the adapter and the optimizer of the start."""
        engine: Any = self.engine
        # the old ones are freed first, because two models may not fit into memory
        engine.module = engine.optimizer = engine.lr_scheduler = engine.checkpoint_manager = None
        torch.manual_seed(self.seed)
        engine.initialize()

    @on_every_rank
    def load_state(self, directory: Path) -> None:
        """Load a checkpoint, except the learning rate, which the job sets."""
        engine: Any = self.engine
        engine.load_checkpoint(str(directory))
        for group in engine.optimizer.param_groups:
            group["lr"] = self.optimizer_config.lr

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


def _gather(tensor: torch.Tensor) -> torch.Tensor:
    gather = getattr(tensor, "full_tensor", None)
    return gather() if gather else tensor


def make_worker_group(job: Job, port: int) -> Any:
    """Return a verl worker group of `job.ranks` ranks that connect at `port`, its model loaded."""
    device = get_device_name()
    pool = RayResourcePool([job.ranks], use_gpu=device != "cpu", max_colocate_count=1)
    group: Any = RayWorkerGroup(
        resource_pool=pool,
        ray_cls_with_init=RayClassWithInitArgs(cls=cluster.as_actor_class(RankWorker), job=job),
        device_name=device,
        name_prefix=cluster.GROUP,
        master_addr=cluster.LOOPBACK,
        master_port=str(port),
    )
    group.restart()
    return group


def _worker_config(job: Job) -> Any:
    train, device = job.train, get_device_name()
    dtype = train.dtype if fast_dtype() == "bf16" else "fp32"
    precision = {"param_dtype": dtype, "reduce_dtype": "fp32", "buffer_dtype": "fp32"}
    return TrainingWorkerConfig(
        model_type="language_model",
        model_config=HFModelConfig(
            path=str(job.base),
            load_tokenizer=False,
            override_config={
                "attn_implementation": attention_name(device) if shares_prefixes(job) else "sdpa"
            },
            use_remove_padding=True,
            enable_gradient_checkpointing=device != "cpu",
            lora_rank=train.lora_rank,
            lora_alpha=train.lora_alpha or 2 * train.lora_rank,
            target_modules=LORA_TARGETS,
            lora_adapter_path=None if job.adapter is None else str(job.adapter),
        ),
        engine_config=FSDPEngineConfig(
            strategy="fsdp2",
            seed=job.seed,
            use_torch_compile=False,
            use_dynamic_bsz=False,
            mixed_precision=precision,
        ),
        optimizer_config=FSDPOptimizerConfig(
            lr=train.learning_rate,
            weight_decay=0.0,
            total_training_steps=1,
            clip_grad=train.gradient_clip,
        ),
        checkpoint_config=CheckpointConfig(save_lora_only=True),
    )
