"""The findings of `ltrain check` on memory and data types of the models of a run.

The bytes of weights, gradients, optimizer and KV cache are counted, by the headers of the weight
files, and on a GPU those of activations too.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ltrain_instrument.instrumentors import Finding, State
from ltrain_train.gateway import VllmOptions
from ltrain_train.gpu import is_usable, list_gpus
from ltrain_train.policy import VLLM_DTYPES, check_artifact, fast_dtype, read_config
from ltrain_train.runs.gpu_shares import (
    GpuShares,
    find_gpus,
    served_dtype,
    served_size,
    share_gpu,
    token_size,
    trained_size,
)
from ltrain_train.runs.plan import Plan
from ltrain_transforms.recipe import MICRO_BATCH_TOKENS, Recipe

CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
"""The file with the memory limit of a container: bytes, or `max`."""
SMALL = 1 << 30
"""Bytes of a GPU that a driver or a desktop uses."""
OTHERS = "`nvidia-smi` lists them. End them, or name another GPU in CUDA_VISIBLE_DEVICES."
QUANTIZED = "its weights are quantized, and the learner trains those of bf16 or fp32"
ROUNDED = "its weights are float16, of which bf16 keeps 8 of 11 significant bits"
SLOW = "this processor has no bf16 instructions: it computes in bf16 thirty times slower than fp32"
SMALLER = "Use a smaller model, or train an adapter: train.lora_rank."
LESS_CACHE = "Use a smaller model, or shorter contexts: serve.max_model_len."
FEWER_TOKENS = "Use a smaller model, or compute fewer tokens at once: train.tokens_per_micro_batch."

ANY: dict[str, Any] = {
    "policy": [{"name": "policy"}],
    "reward": [{"name": "reward", "evaluation": "reward"}],
}
GAE = {"credit": {"outcome": {"estimator": "gae"}}}
WAYS: dict[str, dict[str, Any]] = {
    "all weights": {"train": {"lora_rank": 0}},
    "all weights, with a critic": {"train": {"lora_rank": 0, "critic": {}}, **GAE},
    "an adapter of rank 16": {"train": {"lora_rank": 16}},
    "an adapter of rank 16, with a critic": {"train": {"lora_rank": 16, "critic": {}}, **GAE},
}
"""The sections of a recipe for each way to train a model."""


@dataclass(frozen=True, slots=True)
class Place:
    """A part of the machine's memory and what a run needs there."""

    name: str
    size: int
    """Bytes."""
    needs: Mapping[str, int]
    """Bytes by their use."""
    fix: str = SMALLER
    """The key to change if it does not fit."""
    user: str = "the models need"
    """The subject of the finding, with its verb."""

    def finding(self) -> Finding:
        total = sum(self.needs.values())
        parts = ", ".join(f"{use} {size / 1e9:.1f}" for use, size in self.needs.items() if size)
        text = f"{total / 1e9:.1f} GB of the {self.size / 1e9:.1f} of {self.name}: {parts}"
        if total <= self.size:
            return Finding("memory", State.OK, f"{self.user} about {text}")
        return Finding("memory", State.FAULT, f"{self.user} at least {text}", self.fix)


def check_ways(model: Path) -> Iterator[Finding]:
    """Yield whether each way to train a model fits into this machine; a note if it does not."""
    check_artifact(model, None)
    gpus = find_gpus() if is_usable() else []
    for way, sections in WAYS.items():
        recipe, models = Recipe.from_sections(ANY | sections), {"policy": model}
        shares = share_gpu(recipe, models, gpus) if is_usable() else None
        found = [place.finding() for place in _places(recipe, models, shares)]
        worst = next((each for each in found if each.state is not State.OK), None)
        texts = "; ".join(each.detail for each in found)
        if worst is None:
            yield Finding("train", State.OK, f"{way}: {texts}")
        else:
            yield Finding("train", State.NOTE, f"{way}: {texts}", worst.fix)


def check_memory(plan: Plan, models: Mapping[str, Path]) -> Iterator[Finding]:
    """Yield a finding for each place that the models of a run must fit into.

    Args:
        models: the directory of each policy's weights, by the policy's name.
    """
    if plan.recipe.train.colocate == "swap" and not plan.swaps:
        yield Finding("memory", State.NOTE, plan.describe_memory().rstrip("."))
    for place in _places(plan.recipe, models, plan.shares):
        if any(place.needs.values()):
            yield place.finding()
    if plan.recipe.train.ray_address is not None:
        yield _on_cluster(plan, models)
    yield from _check_used()


def _on_cluster(plan: Plan, models: Mapping[str, Path]) -> Finding:
    """Return what each rank needs on a machine of the Ray cluster, whose memory is unknown here."""
    train = plan.train
    model = trained_size(plan.recipe, models) / train.ranks
    tokens = train.tokens_per_micro_batch or MICRO_BATCH_TOKENS
    activations = tokens * token_size(plan.recipe, [models[name] for name in plan.trained])
    text = (
        f"on the Ray cluster, each of {train.ranks} ranks needs about "
        f"{(model + activations) / 1e9:.1f} GB: model {model / 1e9:.1f}, "
        f"{tokens:,} tokens at once {activations / 1e9:.1f}"
    )
    return Finding("memory", State.OK, text)


def _check_used() -> Iterator[Finding]:
    """Yield a note if processes use the first GPU already, such as those of another run."""
    for gpu in list_gpus()[:1] if is_usable() else ():
        used = ((gpu.total or 0) - (gpu.free or 0)) << 20
        if gpu.free is not None and used > SMALL:
            text = f"processes use {used / 1e9:.1f} GB of the GPU already"
            yield Finding("memory", State.NOTE, text, OTHERS)


def _places(
    recipe: Recipe, models: Mapping[str, Path], shares: GpuShares | None
) -> Iterator[Place]:
    """Yield the places that the models of a recipe must fit into."""
    if not is_usable():
        yield from _machine(recipe, models)
        return
    yield from _gpu_places(shares)
    if shares is not None and shares.swap:
        needs = {"learner": trained_size(recipe, models)}
        needs |= {"vLLM's weights": served_size(recipe, models)}
        yield Place("this machine", machine_bytes(), needs, user="what has left the GPU needs")


def _machine(recipe: Recipe, models: Mapping[str, Path]) -> Iterator[Place]:
    served = served_size(recipe, models)
    cache = VllmOptions().kv_cache_gib * len(set(models.values())) << 30 if served else 0
    trained = 0 if recipe.train.trains_elsewhere else trained_size(recipe, models)
    needs = {"vLLM's weights": served, "its KV cache": cache, "learner": trained}
    yield Place("this machine", machine_bytes(), needs)


def _gpu_places(shares: GpuShares | None) -> Iterator[Place]:
    if shares is None or not shares.total:
        return
    where = "its part of the GPU"
    if shares.gpus or shares.swap:
        where = "its GPU" if shares.gpus else "the GPU in its turn"
    if shares.vllm:
        needs = {"weights, cache and work": shares.vllm_needs}
        yield Place(where, shares.vllm, needs, LESS_CACHE, "vLLM needs")
    tokens = f"{shares.tokens:,} tokens at once"
    needs = {"model": shares.learner_needs, tokens: shares.tokens * shares.token}
    fix = FEWER_TOKENS if shares.learner_needs < shares.learner else SMALLER
    yield Place(where, shares.learner, needs, fix, "the learner needs")


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
    trained, served = plan.train.dtype, served_dtype(plan.recipe)
    if trained == "bf16" != fast_dtype():
        yield Finding("dtype", State.NOTE, SLOW, 'Set train.dtype = "auto".')
    if plan.recipe.serve.starts_vllm and served != VLLM_DTYPES[trained]:
        text = f"vLLM computes in {served} and the learner in {trained}: their probabilities differ"
        yield Finding("dtype", State.NOTE, text, "Remove serve.dtype.")


def _dtype_of(config: Mapping[str, object]) -> object:
    return config.get("dtype") or config.get("torch_dtype")


def check_resources(plan: Plan, models: Mapping[str, Path]) -> Iterable[Finding]:
    """Return the findings on memory and data types."""
    return [*check_memory(plan, models), *check_dtypes(plan, models)]
