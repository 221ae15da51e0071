"""The findings of `ltrain check` on memory and data types of the models of a run.

The bytes of weights, gradients, optimizer and KV cache are counted, by the headers of the weight
files. Activations and the programs themselves are not: a run that does not fit by this cannot fit.
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ltrain_instrument.instrumentors import Finding, State
from ltrain_train.gateway import VllmOptions
from ltrain_train.gpu import is_usable, list_gpus
from ltrain_train.policy import (
    VLLM_DTYPES,
    fast_dtype,
    read_config,
    reference_size,
    training_size,
    weights_size,
)
from ltrain_train.runs.plan import Plan

CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
"""The file with the memory limit of a container: bytes, or `max`."""
ITEM_SIZES = {"bfloat16": 2, "float16": 2, "float32": 4}
"""Bytes of a weight in vLLM, by its data type."""
GPU_SHARE = 0.92
"""Share of a GPU's memory that vLLM takes without an option."""
QUANTIZED = "its weights are quantized, and the learner trains those of bf16 or fp32"
ROUNDED = "its weights are float16, of which bf16 keeps 8 of 11 significant bits"
SLOW = "this processor has no bf16 instructions: it computes in bf16 thirty times slower than fp32"
SMALLER = "Use a smaller model, or train an adapter: train.lora_rank."


@dataclass(frozen=True, slots=True)
class Place:
    """A part of the machine's memory and what a run needs there."""

    name: str
    size: int
    """Bytes."""
    needs: Mapping[str, int]
    """Bytes by their use."""

    def finding(self) -> Finding:
        total = sum(self.needs.values())
        parts = ", ".join(f"{use} {size / 1e9:.1f}" for use, size in self.needs.items() if size)
        text = f"{total / 1e9:.1f} GB of the {self.size / 1e9:.1f} of {self.name}: {parts}"
        if total <= self.size:
            return Finding("memory", State.OK, f"the models need about {text}")
        return Finding("memory", State.FAULT, f"the models need at least {text}", SMALLER)


def check_memory(plan: Plan, models: Mapping[str, Path]) -> Iterator[Finding]:
    """Yield a finding for each place that the models of a run must fit into.

    Args:
        models: the directory of each policy's weights, by the policy's name.
    """
    for place in _gpu_places(plan, models) if is_usable() else _machine(plan, models):
        if any(place.needs.values()):
            yield place.finding()


def _machine(plan: Plan, models: Mapping[str, Path]) -> Iterator[Place]:
    served = _served_size(plan, models)
    cache = VllmOptions().kv_cache_gib * len(set(models.values())) << 30 if served else 0
    trained = _trained_size(plan, models)
    needs = {"vLLM's weights": served, "its KV cache": cache, "learner": trained}
    yield Place("this machine", machine_bytes(), needs)


def _gpu_places(plan: Plan, models: Mapping[str, Path]) -> Iterator[Place]:
    sizes = [gpu.total for gpu in list_gpus() if gpu.total is not None]
    if not sizes or plan.recipe.train.ray_address is not None:
        return
    total, options = sizes[0] << 20, plan.serve_arguments
    share = _option(options, "--gpu-memory-utilization", GPU_SHARE)
    shards = max(1, int(_option(options, "--tensor-parallel-size", 1)))
    served = _served_size(plan, models)
    taken = int(share * total) if served else 0
    yield Place("vLLM's part of the GPU", taken, {"weights": served // shards})
    trained = _trained_size(plan, models) // plan.recipe.train.ranks
    yield Place("the learner's part of the GPU", total - taken, {"learner": trained})


def _served_size(plan: Plan, models: Mapping[str, Path]) -> int:
    """Return the bytes of the weights in the policy servers: one for each directory."""
    if plan.recipe.serve.upstream is not None:
        return 0
    size = ITEM_SIZES[_served_dtype(plan)]
    return sum(weights_size(directory, size) for directory in set(models.values()))


def _trained_size(plan: Plan, models: Mapping[str, Path]) -> int:
    """Return the bytes of the learners; one process trains the adapters of one directory."""
    if plan.recipe.train.ray_address is not None:
        return 0
    learners: dict[object, int] = {}
    for name in plan.trained:
        train, directory = plan.for_policy(name).train, models[name]
        size = training_size(directory, train.lora_rank) * (1 if train.critic is None else 2)
        if train.verl.engine.optimizer_offload or train.verl.engine.model_dtype:
            size = weights_size(directory, 2)  # not less
        if train.kl_coefficient and (train.reference != "base" or not train.lora_rank):
            size += reference_size(directory)
        key = directory if train.lora_rank else name
        learners[key] = max(size, learners.get(key, 0))
    return sum(learners.values())


def _served_dtype(plan: Plan) -> str:
    dtype = plan.recipe.serve.dtype
    return VLLM_DTYPES[plan.train.dtype] if dtype == "auto" else dtype


def _option(arguments: Sequence[str], name: str, default: float) -> float:
    """Return the last value of an option, written as one argument or as two."""
    pattern = re.compile(rf"(?:^| ){name}[ =]([\d.]+)(?= |$)")
    return float(([str(default), *pattern.findall(" ".join(arguments))])[-1])


def machine_bytes(limit: Path = CGROUP_LIMIT) -> int:
    """Return the bytes of memory of this machine, or of the container if it has a limit."""
    installed = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        return min(installed, int(limit.read_text()))
    except (OSError, ValueError):
        return installed


def check_dtypes(plan: Plan, models: Mapping[str, Path]) -> Iterator[Finding]:
    """Yield what the data types of weights, server and learner lose."""
    for name in plan.trained:
        config = read_config(models[name])
        about = f"policy '{name}': "
        if config.get("quantization_config"):
            fix = "Name the model as it was before."
            yield Finding("dtype", State.FAULT, about + QUANTIZED, fix)
        elif plan.train.dtype == "bf16" and _dtype_of(config) == "float16":
            yield Finding("dtype", State.NOTE, about + ROUNDED, 'Set train.dtype = "fp32".')
    trained, served = plan.train.dtype, _served_dtype(plan)
    if trained == "bf16" != fast_dtype():
        yield Finding("dtype", State.NOTE, SLOW, 'Set train.dtype = "auto".')
    if plan.recipe.serve.upstream is None and served != VLLM_DTYPES[trained]:
        text = f"vLLM computes in {served} and the learner in {trained}: their probabilities differ"
        yield Finding("dtype", State.NOTE, text, "Remove serve.dtype.")


def _dtype_of(config: Mapping[str, object]) -> object:
    return config.get("dtype") or config.get("torch_dtype")


def check_resources(plan: Plan, models: Mapping[str, Path]) -> Iterable[Finding]:
    """Return the findings on memory and data types."""
    return [*check_memory(plan, models), *check_dtypes(plan, models)]
