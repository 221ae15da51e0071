"""Rows with common prefixes as one tree of tokens, so that the model computes each prefix once.

Samples of one prompt, and prompts with the same examples, repeat most of their tokens. In the tree
a token attends to its ancestors, and its position is its depth. So each row's log-probabilities and
gradients are those of the row alone.

The nodes are in depth-first order, so the descendants of node j are the nodes j + 1 to
`ends[j]` - 1: node i attends to node j if and only if j <= i < `ends[j]`. The trees and the packs
are made from rows in sorted order, by the lengths of the prefixes that neighbours have in common.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

TREE_MODELS = (
    *("gemma", "gemma2", "gemma3_text", "granite", "llama", "mistral", "olmo2", "phi", "phi3"),
    *("qwen2", "qwen3", "smollm3"),
)
"""Architectures whose attention accepts any mask and whose other layers do not mix tokens."""
PACKED_MODELS = (
    *("cohere2", "deepseek_v3", "ernie4_5_moe", "exaone4", "glm4", "glm4_moe", "granitemoe"),
    *("ministral", "mixtral", "olmo3", "olmoe", "qwen2_moe", "qwen3_moe", "seed_oss"),
    "starcoder2",
)
"""Further architectures that compute several rows at once, but no common prefix."""
SUPPORTED_LAYERS = {"full_attention", "sliding_attention"}
BATCH_ROPES = {"dynamic", "longrope"}
"""Kinds of RoPE whose angles depend on the longest row that is computed at once."""
SCORE_CAP = "attn_logit_softcapping"
"""The bound of the scores of attention, which torch's attention for single rows does not have."""

TokenRows = Sequence[NDArray[np.uint32]]
"""Token ids of each row."""


@dataclass(frozen=True, slots=True)
class PrefixTree:
    """A tree whose N nodes are tokens in depth-first order; paths from its root are rows."""

    tokens: NDArray[np.int64]
    """Token id of each node: [N]."""
    depths: NDArray[np.int64]
    """Depth of each node: [N]."""
    ends: NDArray[np.int64]
    """The first node after the descendants of each node: [N]."""
    paths: list[NDArray[np.int64]]
    """For each row, the node of each of its tokens."""

    def pad(self, size: int) -> Self:
        """Return the tree with nodes of no row at its end: whole blocks of `size`, at least two."""
        count = len(self.tokens)
        more = max(-count % size, 2 * size - count)
        return replace(
            self,
            tokens=np.pad(self.tokens, (0, more)),
            depths=np.pad(self.depths, (0, more), mode="edge"),
            ends=np.concatenate([self.ends, np.arange(count, count + more) + 1]),
        )


def build_prefix_tree(rows: TokenRows, temperatures: Sequence[float]) -> PrefixTree:
    """Return the prefix tree of `rows`; only rows of equal temperature share nodes."""
    order, prefixes = _sort_rows(rows, temperatures)
    starts = np.cumsum([0, *(len(rows[i]) - n for i, n in zip(order, prefixes, strict=True))])
    ends = np.empty(starts[-1], np.int64)
    paths = [np.empty(0, np.int64)] * len(rows)
    path = np.empty(0, np.int64)
    for i, prefix, (start, end) in zip(order, prefixes, pairwise(starts.tolist()), strict=True):
        ends[path[prefix:]] = start
        path = paths[i] = np.concatenate([path[:prefix], np.arange(start, end)])
    ends[path] = starts[-1]
    parts = list(zip(order, prefixes, strict=True))
    tokens = np.concatenate([rows[i][n:] for i, n in parts]).astype(np.int64)
    depths = np.concatenate([np.arange(n, len(rows[i])) for i, n in parts])
    return PrefixTree(tokens, depths, ends, paths)


@dataclass(frozen=True, slots=True)
class Packs:
    """Rows grouped into packs, equally many for each rank."""

    rows: list[list[int]]
    """For each pack, the numbers of its rows; the packs of the first rank come first."""
    rank_tokens: list[int]
    """Tokens that the model computes on each rank."""

    @property
    def tokens(self) -> int:
        """Tokens that the model computes."""
        return sum(self.rank_tokens)


def pack_rows(
    rows: TokenRows, temperatures: Sequence[float], *, max_tokens: int, ranks: int, shared: bool
) -> Packs:
    """Group rows with common prefixes into packs of at most `max_tokens` tokens.

    A longer row is a pack by itself. If prefixes are not `shared`, every token of a row counts.
    Several ranks get packs of similar size: the limit is lowered as far as no rank needs more
    packs. A rank without a row for its last pack gets an empty one.
    """
    order, prefixes = _sort_rows(rows, temperatures)
    lengths = [len(rows[i]) for i in order]
    cutter = _Cutter(lengths, prefixes if shared else [0] * len(rows))
    if ranks > 1:
        most = -(-len(cutter.starts(max_tokens)) // ranks) * ranks
        limits = range(min(max(lengths), max_tokens), max_tokens)
        max_tokens = limits.start + bisect_left(
            limits, True, key=lambda limit: len(cutter.starts(limit)) <= most
        )
    starts = cutter.starts(max_tokens)
    packs = [order[first:end] for first, end in pairwise([*starts, len(order)])]
    sizes = [cutter.size(first, end) for first, end in pairwise([*starts, len(order)])]
    for _ in range(-len(packs) % ranks):
        packs.append([])
        sizes.append(0)
    parts = _split_evenly(sizes, ranks)
    return Packs(
        rows=[packs[number] for part in parts for number in part],
        rank_tokens=[sum(sizes[number] for number in part) for part in parts],
    )


@dataclass(frozen=True, slots=True)
class _Cutter:
    """Cuts rows in sorted order into packs."""

    lengths: list[int]
    prefixes: list[int]
    """Tokens that each row shares with the one before, if they are in one pack."""

    def starts(self, limit: int) -> list[int]:
        """Return where the packs begin, each as full as `limit` allows."""
        starts: list[int] = []
        size = 0
        for at, (length, prefix) in enumerate(zip(self.lengths, self.prefixes, strict=True)):
            size += length - prefix
            if not starts or size > limit:
                starts.append(at)
                size = length
        return starts

    def size(self, first: int, end: int) -> int:
        """Return the tokens of the pack from one row to before another."""
        return sum(self.lengths[first:end]) - sum(self.prefixes[first + 1 : end])


def _split_evenly(sizes: list[int], ranks: int) -> list[list[int]]:
    """Return the packs of each rank, which computes them in this order.

    The ranks compute one pack each at the same time, so those are of similar size. Of them, the
    rank with the fewest tokens so far gets the largest.
    """
    by_size = sorted(range(len(sizes)), key=lambda number: -sizes[number])
    parts: list[list[int]] = [[] for _ in range(ranks)]
    totals = [0] * ranks
    for first in range(0, len(by_size), ranks):
        by_total = sorted(range(ranks), key=totals.__getitem__)
        for rank, number in zip(by_total, by_size[first : first + ranks], strict=True):
            parts[rank].append(number)
            totals[rank] += sizes[number]
    return parts


def supports_prefix_tree(config: dict[str, Any]) -> bool:
    """Return whether a tree's mask fully describes the attention of a model, by its config.json."""
    return (
        config.get("model_type") in TREE_MODELS
        and _separates_rows(config)
        and not config.get("attention_dropout")
    )


def supports_packing(config: dict[str, Any]) -> bool:
    """Return whether a model computes several rows at once as it computes each alone.

    A model that is not in the lists may carry a state from row to row (Mamba, linear attention).
    """
    return (
        config.get("model_type") in (*TREE_MODELS, *PACKED_MODELS)
        and _separates_rows(config)
        and not config.get(SCORE_CAP)
    )


def _separates_rows(config: dict[str, Any]) -> bool:
    """Return whether the layers of a listed model keep tokens of different rows apart."""
    rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
    # a model with windows may have a RoPE for each kind of layer
    ropes = [rope, *(each for each in rope.values() if isinstance(each, dict))]
    kinds = {each.get("rope_type", each.get("type")) for each in ropes}
    return not kinds & BATCH_ROPES and set(config.get("layer_types") or ()) <= SUPPORTED_LAYERS


def _sort_rows(rows: TokenRows, temperatures: Sequence[float]) -> tuple[list[int], list[int]]:
    """Return the rows' numbers in sorted order, and the prefix that each shares with the last.

    Rows with a common prefix are neighbours; those of different temperatures share none.
    """
    # the bytes of big-endian numbers have the order of the numbers
    keys = [row.astype(">u4").tobytes() for row in rows]
    order = sorted(range(len(rows)), key=lambda i: (temperatures[i], keys[i]))
    prefixes = [
        _common_prefix(rows[one], rows[other]) if temperatures[one] == temperatures[other] else 0
        for one, other in pairwise(order)
    ]
    return order, [0, *prefixes]


def _common_prefix(one: NDArray[np.uint32], other: NDArray[np.uint32]) -> int:
    length = min(len(one), len(other))
    differs = one[:length] != other[:length]
    return int(differs.argmax()) if differs.any() else length
