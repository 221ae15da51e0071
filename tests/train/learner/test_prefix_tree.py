"""The prefix tree: its attention mask, its token counts and its packs."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ltrain_train.learner.prefix_tree import build_prefix_tree, pack_rows, supports_prefix_tree

ROWS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), min_size=1, max_size=8)


def test_rows_with_a_common_prefix_share_its_nodes() -> None:
    tree = build_prefix_tree([[7, 8, 9], [7, 8, 5], [7]], [1.0, 1.0, 1.0])
    assert tree.tokens == [7, 8, 9, 5]
    assert tree.depths == [0, 1, 2, 2]
    assert tree.paths == [[0, 1, 2], [0, 1, 3], [0]]
    assert tree.mask().int().tolist() == [
        [1, 0, 0, 0],
        [1, 1, 0, 0],
        [1, 1, 1, 0],
        [1, 1, 0, 1],
    ]


def test_rows_of_different_temperatures_share_nothing() -> None:
    assert build_prefix_tree([[7, 8], [7, 8]], [1.0, 0.7]).tokens == [7, 8, 7, 8]


@given(ROWS)
def test_a_node_attends_to_exactly_the_row_up_to_it(rows: list[list[int]]) -> None:
    tree = build_prefix_tree(rows, [1.0] * len(rows))
    mask = tree.mask()
    for row, path in zip(rows, tree.paths, strict=True):
        assert [tree.tokens[node] for node in path] == row
        for depth, node in enumerate(path):
            assert mask[node].nonzero()[:, 0].tolist() == sorted(path[: depth + 1])


@given(ROWS, st.integers(1, 20), st.booleans())
def test_packs_have_every_row_once_within_their_limit(
    rows: list[list[int]], max_tokens: int, shared: bool
) -> None:
    temperatures = [float(len(row) % 2) for row in rows]
    arrays = [np.array(row, np.uint32) for row in rows]
    packs = pack_rows(arrays, temperatures, max_tokens=max_tokens, shared=shared)
    assert sorted(i for part in packs.rows for i in part) == list(range(len(rows)))
    sizes = []
    for part in packs.rows:
        pack = [rows[i] for i in part]
        tree = build_prefix_tree(pack, [temperatures[i] for i in part])
        sizes.append(len(tree.tokens) if shared else sum(map(len, pack)))
        assert sizes[-1] <= max_tokens or len(part) == 1
    assert packs.tokens == sum(sizes)


@pytest.mark.parametrize(
    ("config", "supported"),
    [
        ({"model_type": "llama"}, True),
        ({"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": False}, True),
        ({"model_type": "mistral", "sliding_window": 4096}, False),
        ({"model_type": "qwen3", "layer_types": ["full_attention", "sliding_attention"]}, False),
        ({"model_type": "mamba2"}, False),
    ],
)
def test_only_full_attention_supports_a_prefix_tree(
    config: dict[str, object], supported: bool
) -> None:
    assert supports_prefix_tree(config) == supported
