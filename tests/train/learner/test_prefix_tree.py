"""The prefix tree: its nodes and their intervals, its token counts and its packs."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ltrain_train.learner.prefix_tree import (
    build_prefix_tree,
    pack_rows,
    supports_packing,
    supports_prefix_tree,
)

ROWS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), min_size=1, max_size=8)


def arrays(rows: list[list[int]]) -> list[Any]:
    return [np.array(row, np.uint32) for row in rows]


def test_rows_with_a_common_prefix_share_its_nodes() -> None:
    rows = [[7, 8, 9], [7, 8, 5, 6], [7], [7, 8, 9]]
    tree = build_prefix_tree(arrays(rows), [1.0] * 4)
    assert tree.tokens.tolist() == [7, 8, 5, 6, 9]
    assert tree.depths.tolist() == [0, 1, 2, 3, 2]
    assert tree.ends.tolist() == [5, 5, 4, 4, 5]
    assert [path.tolist() for path in tree.paths] == [[0, 1, 4], [0, 1, 2, 3], [0], [0, 1, 4]]


def test_rows_of_different_temperatures_share_nothing() -> None:
    tree = build_prefix_tree(arrays([[7, 8], [7, 8]]), [1.0, 0.7])
    assert tree.tokens.tolist() == [7, 8, 7, 8]
    assert tree.ends.tolist() == [2, 2, 4, 4]


@given(ROWS, st.data())
def test_a_node_attends_to_exactly_the_row_up_to_it(
    rows: list[list[int]], data: st.DataObject
) -> None:
    temperatures = [data.draw(st.sampled_from([0.7, 1.0])) for _ in rows]
    tree = build_prefix_tree(arrays(rows), temperatures)
    nodes = np.arange(len(tree.tokens))
    prefixes = {(t, tuple(row[:n])) for row, t in zip(rows, temperatures, strict=True)
                for n in range(1, len(row) + 1)}  # fmt: skip
    assert len(nodes) == len(prefixes)
    for row, path in zip(rows, tree.paths, strict=True):
        assert tree.tokens[path].tolist() == row
        assert tree.depths[path].tolist() == list(range(len(row)))
        for depth, node in enumerate(path):
            visible = nodes[(nodes <= node) & (node < tree.ends)]
            assert visible.tolist() == path[: depth + 1].tolist()


@given(ROWS, st.integers(1, 20), st.integers(1, 3), st.booleans())
def test_packs_have_every_row_once_within_their_limit(
    rows: list[list[int]], max_tokens: int, ranks: int, shared: bool
) -> None:
    temperatures = [float(len(row) % 2) for row in rows]
    packs = pack_rows(arrays(rows), temperatures, max_tokens=max_tokens, ranks=ranks, shared=shared)
    assert sorted(i for part in packs.rows for i in part) == list(range(len(rows)))
    sizes = []
    for part in packs.rows:
        pack = [rows[i] for i in part]
        size = sum(map(len, pack))
        if shared and part:
            size = len(build_prefix_tree(arrays(pack), [temperatures[i] for i in part]).tokens)
        assert size <= max_tokens or len(part) == 1
        sizes.append(size)
    assert len(sizes) % ranks == 0
    count = len(sizes) // ranks
    per_rank = [sizes[first : first + count] for first in range(0, len(sizes), count)]
    assert packs.rank_tokens == [sum(part) for part in per_rank]
    assert packs.tokens == sum(sizes)
    # ranks compute packs of similar size at the same time, so their sums differ by one pack at most
    by_turn = list(zip(*per_rank, strict=True))
    assert all(min(turn) >= max(later) for turn, later in pairwise(by_turn))
    assert max(packs.rank_tokens) - min(packs.rank_tokens) <= max(sizes)


@pytest.mark.parametrize(
    ("lengths", "ranks", "rank_tokens"),
    [
        ([100, 100, 100, 9], 2, [109, 200]),
        ([60, 60, 60, 60], 2, [120, 120]),
        ([90, 10], 2, [90, 10]),
        ([10] * 12, 4, [30, 30, 30, 30]),
    ],
)
def test_ranks_compute_similar_numbers_of_tokens(
    lengths: list[int], ranks: int, rank_tokens: list[int]
) -> None:
    rows = [np.full(length, number, np.uint32) for number, length in enumerate(lengths)]
    packs = pack_rows(rows, [1.0] * len(rows), max_tokens=120, ranks=ranks, shared=True)
    assert sorted(packs.rank_tokens) == sorted(rank_tokens)


DYNAMIC = {"rope_type": "dynamic", "factor": 2.0}


@pytest.mark.parametrize(
    ("config", "computed"),
    [
        ({"model_type": "llama"}, "tree"),
        ({"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": False}, "tree"),
        ({"model_type": "mistral", "sliding_window": 4096}, "tree"),
        ({"model_type": "qwen3", "layer_types": ["full_attention", "sliding_attention"]}, "tree"),
        ({"model_type": "gemma2", "attn_logit_softcapping": 50.0}, "tree"),
        ({"model_type": "llama", "rope_scaling": {"rope_type": "llama3"}}, "tree"),
        ({"model_type": "llama", "attention_dropout": 0.1}, "packed"),
        ({"model_type": "qwen3_moe", "attention_dropout": 0.1}, "packed"),
        ({"model_type": "gemma2", "attn_logit_softcapping": 50, "attention_dropout": 0.1}, "alone"),
        ({"model_type": "phi3", "rope_scaling": {"type": "longrope"}}, "alone"),
        ({"model_type": "gemma3_text", "rope_parameters": {"full_attention": DYNAMIC}}, "alone"),
        ({"model_type": "qwen3", "layer_types": ["full_attention", "linear_attention"]}, "alone"),
        ({"model_type": "qwen3_next"}, "alone"),
        ({"model_type": "mamba2"}, "alone"),
        ({}, "alone"),
    ],
)
def test_a_model_computes_a_tree_packed_rows_or_single_rows(
    config: dict[str, object], computed: str
) -> None:
    packed = "packed" if supports_packing(config) else "alone"
    assert ("tree" if supports_prefix_tree(config) else packed) == computed


def test_each_row_is_a_pack_without_a_limit_for_several() -> None:
    rows = arrays([[7, 8], [7], [7, 8, 9]])
    packs = pack_rows(rows, [1.0] * 3, max_tokens=0, ranks=2, shared=False)
    assert sorted(map(sorted, packs.rows)) == [[], [0], [1], [2]]


def test_a_padded_tree_has_whole_blocks_of_nodes_that_see_only_themselves() -> None:
    tree = build_prefix_tree(arrays([[7, 8, 9], [7, 5]]), [1.0] * 2)
    padded = tree.pad(3)
    assert padded.tokens.tolist() == [7, 5, 8, 9, 0, 0]
    assert padded.depths.tolist() == [0, 1, 1, 2, 2, 2]
    assert padded.ends.tolist() == [4, 2, 4, 4, 5, 6]
    assert [len(build_prefix_tree(arrays([[1] * n]), [1.0]).pad(3).ends) for n in (1, 6, 7)] == [
        *(6, 6, 9)
    ]
