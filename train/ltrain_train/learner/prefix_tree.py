"""Rows with common prefixes as one tree of tokens, so that the model computes each prefix once.

Samples of one prompt, and prompts with the same examples, repeat most of their tokens. In the tree
a token attends to its ancestors, and its position is its depth. So each row's log-probabilities and
gradients are those of the row alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

SUPPORTED_MODELS = ("llama", "mistral", "qwen2", "qwen3")
"""Architectures whose attention accepts any mask and whose other layers do not mix tokens."""

TokenRows = Sequence[Sequence[int]]
"""Token ids of each row."""


@dataclass(frozen=True, slots=True)
class PrefixTree:
    """A tree whose nodes are tokens and whose paths from the root are rows."""

    tokens: list[int]
    """Token id of each node."""
    depths: list[int]
    """Depth of each node."""
    paths: list[list[int]]
    """For each row, the node of each of its tokens."""

    def mask(self) -> torch.Tensor:
        """Return the mask [node, node]: whether the first attends to the second."""
        sees = torch.zeros(len(self.tokens), len(self.tokens), dtype=torch.bool)
        for path in self.paths:
            nodes = torch.tensor(path)
            sees[nodes[:, None], nodes] = torch.ones(len(path), len(path), dtype=torch.bool).tril()
        return sees


def build_prefix_tree(rows: TokenRows, temperatures: Sequence[float]) -> PrefixTree:
    """Return the prefix tree of `rows`; only rows of equal temperature share nodes."""
    nodes: dict[tuple[int | tuple[float], int], int] = {}
    tokens: list[int] = []
    depths: list[int] = []
    paths: list[list[int]] = []
    for row, temperature in zip(rows, temperatures, strict=True):
        node: int | tuple[float] = (temperature,)
        path: list[int] = []
        for depth, token in enumerate(row):
            node = nodes.setdefault((node, token), len(nodes))
            if node == len(tokens):
                tokens.append(token)
                depths.append(depth)
            path.append(node)
        paths.append(path)
    return PrefixTree(tokens, depths, paths)


@dataclass(frozen=True, slots=True)
class Packs:
    """Rows grouped into packs."""

    rows: list[list[int]]
    """For each pack, the numbers of its rows."""
    tokens: int
    """Tokens that the model computes."""


def pack_rows(
    rows: Sequence[NDArray[np.uint32]],
    temperatures: Sequence[float],
    *,
    max_tokens: int,
    shared: bool,
) -> Packs:
    """Group rows with common prefixes into packs of at most `max_tokens` tokens.

    A pack has at least one row. If prefixes are not `shared`, every token of a row counts.
    """
    # the bytes of big-endian numbers have the order of the numbers
    keys = [row.astype(">u4").tobytes() for row in rows]
    order = sorted(range(len(rows)), key=lambda i: (temperatures[i], keys[i]))
    packs: list[list[int]] = []
    size = total = 0
    for i in order:
        shared_length = 0
        if packs and shared and temperatures[i] == temperatures[packs[-1][-1]]:
            shared_length = _common_prefix(rows[i], rows[packs[-1][-1]])
        new = len(rows[i]) - shared_length
        if not packs or size + new > max_tokens:
            packs.append([])
            size, new = 0, len(rows[i])
        packs[-1].append(i)
        size, total = size + new, total + new
    return Packs(packs, total)


def supports_prefix_tree(config: dict[str, Any]) -> bool:
    """Return whether a tree's mask fully describes the attention of a model, by its config.json."""
    layers = set(config.get("layer_types") or ["full_attention"])
    windowed = config.get("sliding_window") and config.get("use_sliding_window", True)
    return (
        config.get("model_type") in SUPPORTED_MODELS
        and layers == {"full_attention"}
        and not windowed
    )


def _common_prefix(one: NDArray[np.uint32], other: NDArray[np.uint32]) -> int:
    length = min(len(one), len(other))
    differs = one[:length] != other[:length]
    return int(differs.argmax()) if differs.any() else length
