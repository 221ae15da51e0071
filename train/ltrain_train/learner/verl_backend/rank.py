"""One rank of the trainer, and the group of a learner that has one rank in its own process.

`RankWorker` is verl's FSDP2 engine with verl's remote methods, and `export`.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import distributed
from verl.single_controller.base import decorator
from verl.trainer.config import CheckpointConfig
from verl.utils.fsdp_utils import (
    collect_lora_params,
    merged_lora_context,
    normalize_peft_param_name,
)
from verl.utils.memory_utils import aggressive_empty_cache
from verl.utils.model import convert_weight_keys
from verl.workers.config import (
    FSDPEngineConfig,
    FSDPOptimizerConfig,
    HFModelConfig,
    TrainingWorkerConfig,
)
from verl.workers.engine_workers import TrainingWorker

from ltrain_train.learner.adapter import write_adapter
from ltrain_train.learner.heartbeat import beat_on_forward
from ltrain_train.learner.objective import Objective
from ltrain_train.learner.prefix_tree import SCORE_CAP, supports_packing, supports_prefix_tree
from ltrain_train.learner.protocol import Job, Place
from ltrain_train.learner.shared_memory import SharedMemory
from ltrain_train.learner.verl_backend import cluster, critic_engine, rows_engine, tree_engine
from ltrain_train.learner.verl_backend.device import current_device
from ltrain_train.learner.verl_backend.rows_attention import ATTENTION, packed_attention
from ltrain_train.learner.weights import DTYPES, omitted_tensors, write_weights
from ltrain_train.policy import Reference, SharedWeights, read_adapter_config, read_config
from ltrain_train.processes import free_port

verl_decorator: Any = decorator
Method = TypeVar("Method", bound=Callable[..., Any])
ENGINE_DEFAULTS = {"use_torch_compile": False, "entropy_from_logits_with_chunking": True}
OPTIMIZER_DEFAULTS = {"weight_decay": 0.0}
"""Options whose defaults are not verl's."""
LORA_TARGETS = "all-linear"
"""Modules that get a LoRA adapter."""


def shares_prefixes(job: Job) -> bool:
    """Return whether this job's model computes the common prefix of rows once."""
    return job.sequence_ranks == 1 and supports_prefix_tree(read_config(job.base))


def batch_tokens(job: Job) -> int:
    """Return the tokens of a micro-batch; 0, so that it has one row, if rows cannot be packed."""
    packed = shares_prefixes(job) or supports_packing(read_config(job.base))
    return job.tokens_per_micro_batch if packed else 0


def _attention(job: Job) -> str:
    """Return transformers' name of the attention of this job's model."""
    device = current_device()
    if shares_prefixes(job):
        return device.tree_attention
    if job.sequence_ranks > 1:
        return ATTENTION
    if batch_tokens(job):
        return packed_attention(device.compute_dtype(job.dtype))
    return "eager" if read_config(job.base).get(SCORE_CAP) else "sdpa"


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
        vendor = tree_engine.VENDOR if shares_prefixes(job) else rows_engine.VENDOR
        os.environ["VERL_ENGINE_VENDOR"] = vendor
        _forbid_pickled_code()
        self.job = job
        self.reference: TrainingWorker | None = None
        self.critic: Any = None
        self.shared: SharedMemory | None = None
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
    def load_reference(self, reference: Reference | None) -> None:
        """Load a model beside the trained one, in place of the one before; None frees that."""
        self.reference = None  # freed first, because three models may not fit into memory
        if reference is None:
            aggressive_empty_cache(force_sync=True)
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
    def move(self, to: Place) -> None:
        """Move the model, the critic and the reference into the memory of the GPU or the host."""
        for worker in filter(None, (self, self.critic, self.reference)):
            TrainingWorker.to(worker, "cpu" if to == "host" else "device")
        # verl copies asynchronously, and keeps the memory of the optimizer
        aggressive_empty_cache(force_sync=True)

    @on_every_rank
    def share(self, dtype: str) -> SharedWeights:
        """Round the weights, with a merged adapter, into memory that vLLM can open."""
        omitted = omitted_tensors(self.job.base)
        with self._merged() as state:
            wanted = {name: tensor for name, tensor in state.items() if name not in omitted}
            self.shared = SharedMemory(wanted, DTYPES[dtype])
            self.shared.fill((name, _gather(tensor)) for name, tensor in wanted.items())
        return self.shared.describe()

    @on_every_rank
    def unshare(self) -> None:
        """Free the memory of `share`."""
        if self.shared is not None:
            self.shared.close()
        self.shared = None

    @on_every_rank
    def export(self, directory: Path, dtype: str, shared: bool = False) -> list[str]:
        """Write the weights, with a merged adapter, as safetensors in `directory`.

        Every rank gathers every tensor; only the first rank writes. With `shared` the tensors are
        those that `share` has rounded.

        Returns:
            the names of the tensors with a number that is not finite.
        """
        if shared and self.shared is not None:
            tensors = self.shared.tensors()
            return write_weights(directory, tensors, dtype=dtype, write=True, copy=False)
        with self._merged() as state:
            gathered = ((name, _gather(tensor)) for name, tensor in state.items())
            write = distributed.get_rank() == 0
            bad = write_weights(directory, gathered, dtype=dtype, write=write)
        distributed.barrier()
        return bad

    @contextmanager
    def _merged(self) -> Iterator[dict[str, Any]]:
        """Yield the tensors of the model, with a merged adapter, under Hugging Face's names."""
        engine: Any = self.engine
        module = engine.module
        lora = hasattr(module, "peft_config")
        with merged_lora_context(module, backup_adapters=True) if lora else nullcontext():
            state = normalize_peft_param_name(module.state_dict())
            yield convert_weight_keys(state, module)

    @on_every_rank
    def export_adapter(self, directory: Path) -> list[str]:
        """Write the adapter in PEFT's layout; return the names of tensors that are not finite."""
        engine: Any = self.engine
        module = engine.module
        tensors = collect_lora_params(module, layered_summon=False, base_sync_done=True)
        whole = [(name, _gather(tensor)) for name, tensor in tensors.items()]
        bad: list[str] = []
        if distributed.get_rank() == 0:
            bad = write_adapter(directory, whole, module.peft_config["default"].to_dict())
        distributed.barrier()
        return bad


def _forbid_pickled_code() -> None:
    """Make every load of a checkpoint in this process accept tensors and plain values only.

    verl loads with `weights_only=False`, which this variable of torch overrides.
    """
    os.environ["TORCH_FORCE_WEIGHTS_ONLY_LOAD"] = "1"
    state: Any = np.random.get_state()
    reconstruct, *_ = state[1].__reduce__()
    # verl saves numpy's random state
    torch.serialization.add_safe_globals([reconstruct, np.ndarray, np.dtype, type(state[1].dtype)])


def _set_optimizer(engine: Any, learning_rate: float, gradient_clip: float) -> None:
    for group in engine.optimizer.param_groups:
        group["lr"] = learning_rate
    engine.optimizer_config.clip_grad = gradient_clip


def _gather(tensor: torch.Tensor) -> torch.Tensor:
    gather = getattr(tensor, "full_tensor", None)
    return gather() if gather else tensor


def _worker_config(job: Job, *, critic: bool = False) -> Any:
    device = current_device()
    dtype = device.compute_dtype(job.dtype)
    precision = {"param_dtype": dtype, "reduce_dtype": "fp32", "buffer_dtype": "fp32"}
    return TrainingWorkerConfig(
        model_type=critic_engine.MODEL_TYPE if critic else "language_model",
        model_config=HFModelConfig(
            path=str(job.base),
            load_tokenizer=False,
            override_config={"attn_implementation": _attention(job)},
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
            ulysses_sequence_parallel_size=job.sequence_ranks,
            **(ENGINE_DEFAULTS | job.verl.engine.options()),
        ),
        # each batch's objective has the learning rate and the bound of the gradient
        optimizer_config=FSDPOptimizerConfig(
            total_training_steps=1, **(OPTIMIZER_DEFAULTS | job.verl.optimizer.options())
        ),
        checkpoint_config=CheckpointConfig(save_lora_only=True),
    )


class LocalGroup:
    """A group of one rank in this process, which needs no Ray.

    Its methods are those of `RankWorker`, with the arguments and results of verl's worker group.
    """

    workers = ()
    """Ray's actors."""

    def __init__(self, job: Job) -> None:
        os.environ |= cluster.rank_environment(rank=0, ranks=1, port=free_port())
        self._rank = RankWorker(job)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._rank, name)
        if getattr(method, verl_decorator.MAGIC_ATTR)["blocking"]:
            return lambda *arguments: [method(*arguments)]
        # the rank adds entries to its batch, and the caller may use it again
        return lambda data: _Done(method(data.copy()))


@dataclass(frozen=True, slots=True)
class _Done:
    """A result, in the place of verl's future."""

    result: Any

    def get(self) -> Any:
        return self.result
