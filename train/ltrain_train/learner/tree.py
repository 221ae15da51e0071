"""Rows that begin alike as one tree of tokens: what they share goes through the model once.

The samples of one prompt, and prompts that open with the same examples, repeat most of their
tokens. In a tree a token sees its ancestors and stands at its depth, so that each row's
log-probabilities and gradients are those of the row alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import torch

MODELS = ("llama", "mistral", "qwen2", "qwen3")
"""Architectures whose attention takes any mask and whose layers mix tokens in no other way."""

Rows = Sequence[Sequence[int]]
"""Token ids of each row."""


@dataclass(frozen=True, slots=True)
class Tree:
    tokens: list[int]
    depths: list[int]
    paths: list[list[int]]
    """For each row the node of each of its tokens."""

    def mask(self) -> torch.Tensor:
        """Give [node, node]: whether the first sees the second."""
        sees = torch.zeros(len(self.tokens), len(self.tokens), dtype=torch.bool)
        for path in self.paths:
            nodes = torch.tensor(path)
            sees[nodes[:, None], nodes] = torch.ones(len(path), len(path), dtype=torch.bool).tril()
        return sees


def plant(rows: Rows, kinds: Sequence[float]) -> Tree:
    """Give the tree of `rows`, in which only rows of one kind share tokens."""
    nodes: dict[tuple[int | tuple[float], int], int] = {}
    tokens: list[int] = []
    depths: list[int] = []
    paths: list[list[int]] = []
    for row, kind in zip(rows, kinds, strict=True):
        at: int | tuple[float] = (kind,)
        path: list[int] = []
        for depth, token in enumerate(row):
            at = nodes.setdefault((at, token), len(nodes))
            if at == len(tokens):
                tokens.append(token)
                depths.append(depth)
            path.append(at)
        paths.append(path)
    return Tree(tokens, depths, paths)


@dataclass(frozen=True, slots=True)
class Packs:
    rows: list[list[int]]
    """For each pack the numbers of its rows."""
    tokens: int
    """Tokens that go through the model."""


def pack(rows: Rows, kinds: Sequence[float], *, most: int, shared: bool) -> Packs:
    """Put rows that begin alike side by side, in packs of at most `most` tokens.

    A pack holds one row at least. Where nothing is `shared`, each row counts in full.
    """
    order = sorted(range(len(rows)), key=lambda i: (kinds[i], rows[i]))
    packs: list[list[int]] = []
    size = total = 0
    for i in order:
        common = 0
        if packs and shared and kinds[i] == kinds[packs[-1][-1]]:
            common = _common(rows[i], rows[packs[-1][-1]])
        new = len(rows[i]) - common
        if not packs or size + new > most:
            packs.append([])
            size, new = 0, len(rows[i])
        packs[-1].append(i)
        size, total = size + new, total + new
    return Packs(packs, total)


def can_share(config: dict[str, Any]) -> bool:
    """Tell from a model's config.json whether a tree's mask says all of its attention."""
    layers = set(config.get("layer_types") or ["full_attention"])
    windowed = config.get("sliding_window") and config.get("use_sliding_window", True)
    return config.get("model_type") in MODELS and layers == {"full_attention"} and not windowed


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    pairs = zip(one, other, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
