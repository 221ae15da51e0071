"""Advantages of rollouts from literal rewards and values, and against verl."""

import json
import subprocess
import sys
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.property_examples import examples

from ltrain_train.learner.critic_advantages import critic_advantages, gae, whiten
from ltrain_transforms.recipe import Critic
from ltrain_transforms.tables import SAMPLES

PROGRAM = """
import json, sys
import torch
from verl.trainer.ppo.core_algos import compute_gae_advantage_return as gae
rewards, values, mask, gamma, lam = json.loads(sys.argv[1])
found = gae(*(torch.tensor(x, dtype=torch.float64) for x in (rewards, values, mask)), gamma, lam)
print(json.dumps([x.tolist() for x in found]))
"""
CALL = st.tuples(st.integers(1, 3), st.integers(0, 2))
"""Its sampled tokens, and the tokens between it and the call before it in its row."""


def row(execution: str, *calls: tuple[int, int, int]) -> dict[str, Any]:
    """Return a row of calls, each a position, its sampled tokens and the tokens before them."""
    mask: list[int] = []
    offsets = []
    for _, sampled, before in calls:
        mask += [0] * before
        offsets.append(len(mask))
        mask += [1] * sampled
    return {
        "execution_id": execution,
        "policy": "p",
        "prompt_ids": [1],
        "response_ids": [1] * len(mask),
        "response_mask": mask,
        "call_offsets": offsets,
        "call_positions": [position for position, _, _ in calls],
    }


def frame(*rows: dict[str, Any]) -> pl.DataFrame:
    return pl.DataFrame(list(rows), schema={n: SAMPLES.schema[n] for n in rows[0]})


def estimate(rows: pl.DataFrame, rewards: list[float], values: list[float], **more: Any) -> Any:
    critic = Critic(**{"whiten": False} | more)
    return critic_advantages(rows, np.array(rewards), np.array(values), critic)


def test_a_trajectory_by_hand() -> None:
    ends = np.array([False, False, True])
    advantages = gae(np.array([0.0, 1.0, 2.0]), np.array([0.5, 1.0, 1.5]), ends, gamma=0.5, lam=0.5)
    # deltas: 0 + 0.5 - 0.5 = 0, 1 + 0.75 - 1 = 0.75, 2 - 1.5 = 0.5
    assert advantages.tolist() == [0.25 * 0.875, 0.875, 0.5]


def test_a_row_goes_on_in_the_call_that_follows() -> None:
    """Two rows of two calls each interleave; the tokens between the calls are no steps."""
    rows = frame(row("a", (0, 1, 0), (4, 1, 2)), row("a", (2, 1, 0), (6, 1, 1)))
    rewards, values = [0.0, 0.0, 0.0, 2.0, 1.0, 0.0, 4.0], [1.0, 9.0, 9.0, 3.0, 2.0, 9.0, 4.0]
    found = estimate(rows, rewards, values, lam=0.0)
    # the order of the values is 1, 2, 3, 4
    assert found.advantages.tolist() == [1.0, 0.0, 0.0, 3.0, 2.0, 0.0, 0.0]
    assert found.returns.tolist() == [2.0, 0.0, 0.0, 6.0, 4.0, 0.0, 4.0]
    whole = estimate(rows, rewards, values, lam=1.0)
    assert whole.returns.tolist() == [7.0, 0.0, 0.0, 6.0, 7.0, 0.0, 4.0]


def test_executions_and_policies_are_trajectories_of_their_own() -> None:
    other = row("a", (1, 1, 0)) | {"policy": "q"}
    rows = frame(row("b", (0, 1, 0)), row("a", (0, 1, 0)), other, row("b", (1, 1, 0)))
    found = estimate(rows, [1.0, 2.0, 4.0, 8.0], [0.0] * 4)
    assert found.returns.tolist() == [9.0, 2.0, 4.0, 8.0]


def test_the_metrics_by_hand() -> None:
    rows = frame(row("a", (0, 2, 0)))
    found = estimate(rows, [1.0, 3.0], [2.0, 2.0])
    assert found.returns.tolist() == [4.0, 3.0]
    assert found.metrics == {
        "value_mean": 2.0,
        "return_mean": 3.5,
        "advantage_mean": 1.5,
        "advantage_std": 0.5,
        "explained_variance": 0.0,
    }
    assert estimate(rows, [1.0, 3.0], [4.0, 3.0]).metrics["explained_variance"] == 1.0
    assert estimate(rows, [0.0, 3.0], [0.0, 1.0]).metrics["explained_variance"] == 0.0


def test_one_advantage_is_not_whitened() -> None:
    assert whiten(np.array([0.7])).tolist() == [0.7]
    assert whiten(np.array([2.0, 2.0])).tolist() == [0.0, 0.0]


@settings(max_examples=examples(60))
@given(st.lists(st.tuples(CALL, st.integers(0, 2)), min_size=1, max_size=7), st.data())
def test_merged_rows_have_the_advantages_of_unmerged_ones(
    calls: list[tuple[tuple[int, int], int]], data: st.DataObject
) -> None:
    """Each call is in one of three rows of one execution, or in a row of its own."""
    numbers = st.floats(-2, 2, allow_subnormal=False)
    count = sum(sampled for (sampled, _), _ in calls)
    reward, value = (data.draw(st.lists(numbers, min_size=count, max_size=count)) for _ in range(2))
    starts = np.cumsum([0, *(sampled for (sampled, _), _ in calls)])

    def by_step(groups: list[list[int]]) -> Any:
        rows = [
            row("a", *((i, calls[i][0][0], calls[i][0][1] if k else 0) for k, i in enumerate(each)))
            for each in groups
        ]
        at = [starts[i] + j for each in groups for i in each for j in range(calls[i][0][0])]
        mask = np.concatenate([each["response_mask"] for each in rows]) > 0
        spread = [np.full(len(mask), 7.0) for _ in range(2)]
        for flat, numbers_of_steps in zip(spread, (reward, value), strict=True):
            flat[mask] = np.array(numbers_of_steps)[at]
        critic = Critic(gamma=0.9, lam=0.8)
        found = critic_advantages(frame(*rows), spread[0], spread[1], critic)
        pairs = zip(found.advantages[mask], found.returns[mask], strict=True)
        return np.array([pair for _, pair in sorted(zip(at, pairs, strict=True))])

    merged = [[i for i, (_, row) in enumerate(calls) if row == number] for number in range(3)]
    assert by_step([each for each in merged if each]) == pytest.approx(
        by_step([[i] for i in range(len(calls))])
    )


def test_rows_of_one_call_have_verls_numbers() -> None:
    draw = np.random.default_rng(0)
    mask = (draw.random((5, 7)) < 0.7).astype(float)
    mask[:, 0] = mask[:, -1] = 1.0  # a call ends with a sampled token
    rewards, values = draw.normal(size=(2, 5, 7))
    arguments = json.dumps([rewards.tolist(), values.tolist(), mask.tolist(), 0.9, 0.8])
    command = [sys.executable, "-c", PROGRAM, arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    advantages, returns = (np.array(x) for x in json.loads(done.stdout.splitlines()[-1]))
    rows = [row(f"e{i}", (0, 7, 0)) | {"response_mask": mask[i].astype(int)} for i in range(5)]
    found = estimate(
        frame(*rows), rewards.ravel().tolist(), values.ravel().tolist(),
        gamma=0.9, lam=0.8, whiten=True,
    )  # fmt: skip
    sampled = mask.ravel() > 0
    assert found.advantages[sampled] == pytest.approx(advantages.ravel()[sampled], abs=1e-6)
    assert found.returns[sampled] == pytest.approx(returns.ravel()[sampled], abs=1e-9)
    assert not found.advantages[~sampled].any()
