"""The memory that the models of a run need, and the parts of vLLM and a learner of one GPU.

* `split`: vLLM gets 40 % of the GPU, or less if the learner can then compute more tokens at once.
  It keeps its weights and some contexts of KV cache. The rest is the learner's.
* `swap`: each has the GPU in turn, but for what the other one cannot free.

What the recipe sets comes first.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import floor
from pathlib import Path

from ltrain_train.gateway import SLEEP_MODE, count_replicas, count_shards, find_option
from ltrain_train.gpu import Gpu, NvidiaSmiFailed, list_gpus, visible_gpus
from ltrain_train.policy import (
    VLLM_DTYPES,
    activation_size,
    cache_size,
    context_length,
    reference_size,
    resolve_dtype,
    training_size,
    weights_size,
)
from ltrain_transforms.recipe import MICRO_BATCH_TOKENS, Colocate, Recipe

ITEM_SIZES = {"bfloat16": 2, "float16": 2, "float32": 4}
"""Bytes of a weight in vLLM, by its data type."""
SHARE, ALONE = 0.4, 0.92
"""Most of a GPU's memory that vLLM takes beside a learner, and that it takes alone."""
SHARE_OPTION = "--gpu-memory-utilization"
MOST_TOKENS = 16_384
"""Most tokens that a learner on a GPU computes at once, if the recipe sets no number."""
CONTEXTS, CONTEXT = 4, 8192
"""Contexts in the least KV cache, and most tokens of each."""
VLLM_WORK = 3 << 30
"""Bytes that vLLM computes in, within its share."""
OVERHEAD = 3 << 30
"""Bytes that belong to neither: both processes' CUDA contexts, vLLM's graphs, and gaps. A process
that has left the GPU to the other keeps its own."""


@dataclass(frozen=True, slots=True)
class GpuShares:
    """The parts of a GPU, in bytes."""

    total: int
    """The GPU's memory; 0: unknown, as of a part of a GPU (MIG)."""
    gpus: tuple[str, ...]
    """GPUs that vLLM has for itself; none: it shares the learner's first one."""
    vllm: int
    """vLLM's part of its first GPU; 0 without a vLLM on this machine."""
    vllm_needs: int
    """The least that vLLM needs of it: weights, some contexts of KV cache, and room to compute."""
    learner_needs: int
    """Bytes of weights, gradients and optimizer, in each rank."""
    token: int
    """Bytes of the activations of one token; 0: unknown."""
    tokens: int
    """Tokens that the learner computes at once."""
    swap: bool = False
    """Whether vLLM and the learner have the GPU in turn."""
    servers: int = 1
    """Processes of vLLM, which have equal parts of vLLM's."""

    @property
    def learner(self) -> int:
        """The learner's part."""
        return max(0, self.total - (0 if self.gpus or self.swap else self.vllm) - OVERHEAD)

    @property
    def fits(self) -> bool:
        """Whether both parts hold what is needed, as far as it is known."""
        needed = self.learner_needs + self.tokens * self.token
        return not self.total or (self.vllm >= self.vllm_needs and self.learner >= needed)

    @property
    def options(self) -> tuple[str, ...]:
        """The options of a vLLM that shares its GPU, with a learner or with another vLLM."""
        if not self.vllm_needs or (self.gpus and self.servers == 1):
            return ()
        sleep = (SLEEP_MODE,) if self.swap else ()
        share = ALONE if self.swap or self.gpus else SHARE
        if self.total:
            share = self.vllm / self.total
        hundredths = floor(100 * share / self.servers + 1e-6)  # not 0.29 for 0.3 of the bytes
        return *sleep, SHARE_OPTION, f"{hundredths / 100:g}"

    def describe(self) -> str:
        """Return who gets what, in one sentence."""
        if not self.total:
            in_turn = " vLLM and the learner have it in turn." if self.swap else ""
            return f"GPU memory: unknown; a micro-batch has {self.tokens:,} tokens.{in_turn}"
        learner = (
            f"the learner {_gib(self.learner)}, of which {_gib(self.learner_needs)} hold the model "
            f"and {_gib(self.tokens * self.token)} the {self.tokens:,} tokens of a micro-batch"
        )
        if self.gpus:
            named = "GPU " if len(self.gpus) == 1 else "GPUs "
            return f"GPU memory: vLLM has {named}{','.join(self.gpus)}; {learner}."
        if not self.vllm:
            return f"GPU memory: {learner}."
        in_turn = " in turn" if self.swap else ""
        each = "" if self.servers == 1 else f" for each of {self.servers}"
        share = f"{self.options[-1]}{each}"
        return f"GPU memory{in_turn}: vLLM {_gib(self.vllm)} ({share}); {learner}."


def find_gpus() -> list[Gpu]:
    """Return the GPUs of this machine; none if nvidia-smi fails, whose error a run prints."""
    try:
        return list_gpus()
    except NvidiaSmiFailed:
        return []


def share_gpu(
    recipe: Recipe,
    models: Mapping[str, Path],
    gpus: Sequence[Gpu],
    colocate: Colocate | None = None,
) -> GpuShares | None:
    """Return the parts of the first GPU; None without a learner that uses it.

    Args:
        models: the directory of each policy's weights, by the policy's name.
        gpus: those of this machine.
        colocate: how vLLM and the learner share it; None: as the recipe says.
    """
    trained = [models[policy.name] for policy in recipe.trained if policy.name in models]
    if recipe.train.trains_elsewhere or len(trained) < len(recipe.trained):
        return None
    total = (gpus[0].total or 0) << 20 if gpus else 0
    way = colocate or recipe.train.colocate
    parts = partial(
        divide,
        total,
        gpus=_own_gpus(recipe, visible_gpus(gpus)) if total else recipe.serve.gpus,
        vllm_needs=_vllm_needs(recipe, models),
        servers=max(1, len(set(models.values()))),
        share=find_option(recipe.serve.vllm, SHARE_OPTION),
        learner_needs=trained_size(recipe, models) // recipe.train.ranks,
        token=token_size(recipe, trained),
        tokens=recipe.train.tokens_per_micro_batch,
    )
    split = parts()
    return parts(swap=True) if way == "swap" or (way == "auto" and not split.fits) else split


def divide(
    total: int,
    *,
    gpus: tuple[str, ...],
    vllm_needs: int,
    share: float | None,
    learner_needs: int,
    token: int,
    tokens: int | None,
    swap: bool = False,
    servers: int = 1,
) -> GpuShares:
    """Return the parts of a GPU of `total` bytes.

    Args:
        gpus: GPUs that vLLM has for itself; none: it shares the learner's first one.
        vllm_needs: the least bytes of vLLM; 0: there is none.
        share: the share of each vLLM that the recipe sets.
        learner_needs: bytes of the learner without activations.
        token: bytes of a token's activations; 0: unknown.
        tokens: tokens of a micro-batch that the recipe sets.
        swap: whether vLLM and the learner have the GPU in turn, if they share it.
        servers: processes of vLLM, one for each directory of weights.
    """
    free = total - OVERHEAD - learner_needs
    wanted = (tokens or MOST_TOKENS) * token
    swap = swap and bool(vllm_needs) and not gpus
    if not vllm_needs:
        vllm, gpus = 0, ()
    elif share is not None or gpus:
        vllm = int((share * servers if share else ALONE) * total)
    elif swap:
        vllm = max(0, min(int(ALONE * total), total - OVERHEAD))
    else:
        vllm = max(vllm_needs, min(int(SHARE * total), free - wanted))
    if tokens is None:
        fitting = (free - (0 if gpus or swap else vllm)) // token if token else 0
        tokens = max(MICRO_BATCH_TOKENS, min(MOST_TOKENS, fitting))
    return GpuShares(total, gpus, vllm, vllm_needs, learner_needs, token, tokens, swap, servers)


def served_size(recipe: Recipe, models: Mapping[str, Path]) -> int:
    """Return the bytes of the weights in the policy servers: one for each directory."""
    if not recipe.serve.starts_vllm:
        return 0
    size = ITEM_SIZES[served_dtype(recipe)]
    return sum(weights_size(directory, size) for directory in set(models.values()))


def served_dtype(recipe: Recipe) -> str:
    """Return vLLM's name of the type in which it computes."""
    dtype = recipe.serve.dtype
    return VLLM_DTYPES[resolve_dtype(recipe.train).dtype] if dtype == "auto" else dtype


def trained_size(recipe: Recipe, models: Mapping[str, Path]) -> int:
    """Return the bytes of the learners; one process trains the adapters of one directory."""
    learners: dict[object, int] = {}
    for policy in recipe.trained:
        train, directory = recipe.for_policy(policy.name).train, models[policy.name]
        size = training_size(directory, train.lora_rank) * (1 if train.critic is None else 2)
        if train.verl.engine.optimizer_offload or train.verl.engine.model_dtype:
            size = weights_size(directory, 2)  # not less
        if train.kl_coefficient and (train.reference != "base" or not train.lora_rank):
            size += reference_size(directory)
        key = directory if train.lora_rank else policy.name
        learners[key] = max(size, learners.get(key, 0))
    return sum(learners.values())


def token_size(recipe: Recipe, trained: Iterable[Path]) -> int:
    """Return the bytes of a token's activations in a rank; 0: unknown.

    Args:
        trained: the directories of the weights of the trained policies.
    """
    return max(map(activation_size, trained)) // recipe.train.sequence_ranks


def _vllm_needs(recipe: Recipe, models: Mapping[str, Path]) -> int:
    """Return the least bytes of the GPU that the policy servers need; 0 without one."""
    weights = served_size(recipe, models)
    if not weights:
        return 0
    caches, shards, directories = 0, count_shards(recipe.serve.vllm), set(models.values())
    for directory in directories:
        length = min(CONTEXT, recipe.serve.max_model_len or CONTEXT, context_length(directory))
        caches += CONTEXTS * length * cache_size(directory)
    return (weights + caches) // shards + VLLM_WORK * len(directories)


def _own_gpus(recipe: Recipe, visible: Sequence[str]) -> tuple[str, ...]:
    """Return the GPUs that vLLM does not share with the learner, whose ranks have the first ones.

    A recipe may name them, or the number of replicas; else vLLM gets as many replicas as fit.
    """
    ranks = recipe.train.ranks
    if recipe.serve.gpus:
        return () if set(recipe.serve.gpus) & set(visible[:ranks]) else recipe.serve.gpus
    left, vllm = visible[ranks:], recipe.serve.vllm
    wanted = count_replicas(vllm, len(left)) * count_shards(vllm)
    return tuple(left[:wanted]) if len(left) >= wanted else ()


def _gib(size: int) -> str:
    return f"{size / (1 << 30):.1f} GiB"
