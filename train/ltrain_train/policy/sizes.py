"""Approximate bytes of models in memory and on disk, from the headers of their weight files."""

from math import prod
from pathlib import Path

from ltrain_train.errors import BadModel
from ltrain_train.policy.weights import read_shapes, text_config

LOGIT_BYTES = 12
"""Bytes of a logit while a loss is computed: in bf16 and in fp32, and the gradients of both."""


def weights_size(base: Path, itemsize: int) -> int:
    """Return the bytes of the model's weights; 0 if they are not in safetensors files.

    Args:
        itemsize: bytes of a weight.
    """
    return itemsize * _count_parameters(base)


def reference_size(base: Path) -> int:
    """Return the bytes of a reference in memory: its weights in fp32."""
    return weights_size(base, 4)


def training_size(base: Path, rank: int) -> int:
    """Return the bytes of a model in training: weights, gradients, AdamW's moments.

    All are fp32; with a LoRA rank, only the adapter has gradients and moments.
    """
    trained = adapter_size(base, rank) if rank else reference_size(base)
    return reference_size(base) + 3 * trained


def checkpoint_size(base: Path, rank: int) -> int:
    """Return the bytes of a checkpoint: fp32 weights and AdamW's two moments of each.

    With a LoRA rank only adapter weights count, as if every matrix had an adapter.
    """
    return 3 * (adapter_size(base, rank) if rank else reference_size(base))


def adapter_size(base: Path, rank: int) -> int:
    """Return the bytes of an adapter in fp32, as if every matrix had one."""
    try:
        shapes = read_shapes(base).values()
    except BadModel:
        return 0
    return 4 * sum(rank * sum(shape) for shape in shapes if len(shape) == 2)


def activation_size(base: Path) -> int:
    """Return the bytes of a token in a training step on a GPU; 0 if the configuration is unknown.

    With gradient checkpointing each layer keeps its input, in bf16; the logits take the most.
    """
    config = text_config(base)
    layers, width = config.get("num_hidden_layers", 0), config.get("hidden_size", 0)
    return LOGIT_BYTES * int(config.get("vocab_size", 0)) + 2 * int(layers) * int(width)


def cache_size(base: Path) -> int:
    """Return the bytes of a token in a KV cache of bf16; 0 if the configuration is unknown."""
    config = text_config(base)
    heads = config.get("num_attention_heads") or 1
    width = config.get("head_dim") or config.get("hidden_size", 0) // heads
    layers, groups = config.get("num_hidden_layers", 0), config.get("num_key_value_heads") or heads
    return 2 * 2 * int(layers) * int(groups) * int(width)


def context_length(base: Path) -> int:
    """Return the tokens of prompt and response together that the model allows."""
    return int(text_config(base).get("max_position_embeddings") or 1 << 20)


def _count_parameters(base: Path) -> int:
    try:
        return sum(prod(shape) for shape in read_shapes(base).values())
    except BadModel:  # weights in .bin files, whose headers only torch can read
        return 0
