"""Rows of a samples table as the TensorDict of one optimizer step."""

import tracemalloc
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from ltrain_train.errors import BadSamples
from ltrain_train.learner.row_values import (
    CORRECTION,
    OLD,
    REFERENCE,
    count_tokens,
    total_weight,
    with_values,
)
from ltrain_train.learner.samples import read_rows, split_into_steps
from ltrain_train.learner.verl_backend.batch import make_batch

Rows = list[dict[str, Any]]
Make = Callable[..., Rows]
Write = Callable[[Rows], Path]

LONG, SHORT = (
    {"prompt_ids": [1, 2, 3], "response_ids": [4, 5], "response_mask": [1, 0],
     "rollout_logprobs": [-0.5, 0.0], "advantages": [2.0, 0.0], "loss_weight": [0.5, 0.0]},
    {"prompt_ids": [7], "response_ids": [8], "response_mask": [1],
     "rollout_logprobs": [-0.25], "advantages": [-1.0], "loss_weight": [3.0]},
)  # fmt: skip


@pytest.fixture
def read(make_rows: Make, write: Write) -> Callable[..., pl.DataFrame]:
    """Return a function that reads rows with the given columns."""

    def read(*changes: dict[str, Any]) -> pl.DataFrame:
        rows = [row | change for row, change in zip(make_rows(9), changes, strict=False)]
        return read_rows(write(rows), vocab_size=600)

    return read


def test_each_field_has_a_value_for_every_token(read: Callable[..., pl.DataFrame]) -> None:
    rows = read(LONG | {"temperature": 0.5}, SHORT | {"temperature": 1.0})
    data = make_batch(rows, ranks=1, tokens=100, shared=True).data
    fields = {name: data[name] for name in data.keys() if name != "temperature"}  # noqa: SIM118
    tensors = {name: x.values() for name, x in fields.items() if isinstance(x, torch.Tensor)}
    assert {name: (x.dtype, x.tolist()) for name, x in tensors.items()} == {
        "input_ids": (torch.int64, [1, 2, 3, 4, 5, 7, 8]),
        "position_ids": (torch.int64, [0, 1, 2, 3, 4, 0, 1]),
        "scored": (torch.int64, [0, 0, 0, 1, 1, 0, 1]),
        "loss_mask": (torch.int64, [0, 0, 0, 1, 0, 0, 1]),
        "call_starts": (torch.int64, [1, 0, 0, 0, 0, 1, 0]),
        "old_log_probs": (torch.float32, [0, 0, 0, -0.5, 0, 0, -0.25]),
        "advantages": (torch.float32, [0, 0, 0, 1.0, 0, 0, -3.0]),
        "weights": (torch.float32, [0, 0, 0, 0.5, 0, 0, 3.0]),
    }
    assert all(x.offsets().tolist() == [0, 5, 7] for x in fields.values() if hasattr(x, "offsets"))
    assert data["temperature"].tolist() == [0.5, 1.0]
    assert (data["weight_sum"], total_weight(rows), count_tokens(rows)) == (3.5, 3.5, 7)


def test_old_log_probabilities_replace_the_sampled_ones(
    read: Callable[..., pl.DataFrame],
) -> None:
    rows = read(LONG, SHORT)
    columns = {OLD: [-1.0, -2.0, -3.0], CORRECTION: [1.5, 1.0, 2.0], REFERENCE: [-4.0, -5.0, -6.0]}
    arrays = {name: np.array(values, np.float32) for name, values in columns.items()}
    corrected = with_values(rows, **arrays)
    made = make_batch(corrected, ranks=3, tokens=4, shared=True)
    fields = {"old_log_probs": OLD, "rollout_is_weights": CORRECTION, REFERENCE: REFERENCE}
    for name, column in fields.items():
        first, second, third = columns[column]
        parts: dict[int, list[float]]
        parts = {0: [0, 0, 0, first, second], 1: [0, third], -1: [0, 0]}
        expected = chain.from_iterable(parts[number] for number in made.row_numbers)
        assert made.data[name].values().tolist() == list(expected)
    assert sorted(made.row_numbers) == [-1, 0, 1]


def test_steps_have_whole_groups_of_similar_size(read: Callable[..., pl.DataFrame]) -> None:
    rows = read(*[{"group_id": name} for name in "abacbccad"])
    steps = list(split_into_steps(rows, 3, "0.0"))
    assert sorted(step.height for step in steps) == [3, 3, 3]
    groups = [set(step["group_id"]) for step in steps]
    assert sorted(map(sorted, groups)) == [["a"], ["b", "d"], ["c"]]
    names = [name for step in steps for name in step["sample_id"]]
    assert sorted(names) == sorted(rows["sample_id"])
    assert [x for step in split_into_steps(rows, 3, "0.0") for x in step["sample_id"]] == names
    assert len(list(split_into_steps(rows, 20, ""))) == 4


def test_rows_without_a_group_go_with_their_rollout(read: Callable[..., pl.DataFrame]) -> None:
    rows = read(*[{"group_id": None, "rollout_id": name} for name in "abab"])
    steps = split_into_steps(rows, 9, "")
    assert sorted([*step["rollout_id"]] for step in steps) == [["a", "a"], ["b", "b"]]


def test_a_call_starts_at_its_row_or_at_its_first_sampled_token(
    read: Callable[..., pl.DataFrame],
) -> None:
    two = {
        "prompt_ids": [1, 2], "response_ids": [4, 5, 6, 7], "response_mask": [1, 0, 0, 1],
        "rollout_logprobs": [-1.0] * 4, "advantages": [1.0] * 4, "loss_weight": [1.0] * 4,
        "call_offsets": [0, 3], "temperature": 1.0,
    }  # fmt: skip
    rows = read(two, SHORT | {"temperature": 1.0}, SHORT | {"temperature": 1.0})
    data = make_batch(rows, ranks=1, tokens=100, shared=False).data
    assert data["call_starts"].values().tolist() == [1, 0, 0, 0, 0, 1, 1, 0, 1, 0]


@pytest.mark.parametrize("column", ["prompt_ids", "response_mask", "advantages"])
def test_a_null_in_a_list_is_refused(read: Callable[..., pl.DataFrame], column: str) -> None:
    with pytest.raises(BadSamples, match=r"sample s1: .*(have no null|be finite)"):
        read({}, SHORT | {column: [None]})


def test_no_token_becomes_a_python_object(read: Callable[..., pl.DataFrame]) -> None:
    tokens = [{"prompt_ids": [*range(600)] * 100} for _ in range(4)]
    rows = read(*tokens)
    tracemalloc.start()
    try:
        [step] = split_into_steps(rows, 1, "")
        make_batch(step, ranks=1, tokens=1000, shared=True)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100 * count_tokens(rows)  # NumPy's arrays; a list of ints has 36 B a token
