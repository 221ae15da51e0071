"""Generalized advantage estimation over the sampled tokens of a rollout.

A step is a sampled token; its state is everything before it. The steps of an execution are the
tokens of all its calls in the order of the calls, whichever rows these are in. So the last token of
a row bootstraps with the value of the next call's first token, and merged and unmerged rows have
the same advantages. Tokens between calls are environment. After the last token the value is 0.
"""

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ltrain_train.learner.samples import call_lengths, flat_values
from ltrain_transforms.recipe import Critic

Floats = NDArray[np.float64]
TRAJECTORY = ("execution_id", "policy")
"""The columns that rows of one trajectory share."""
WHITENING_EPSILON = 1e-8
"""Added to the variance."""


@dataclass(frozen=True, slots=True)
class Estimates:
    """The credit of an update's rows by the critic's values, over all response tokens."""

    advantages: Floats
    """0 for tokens that were not sampled."""
    returns: Floats
    """The targets of the values; 0 for tokens that were not sampled."""
    metrics: dict[str, float]


def critic_advantages(
    rows: pl.DataFrame, rewards: Floats, values: Floats, critic: Critic
) -> Estimates:
    """Return the advantages and the returns of the response tokens of all rows.

    Args:
        rows: whole executions.
        rewards: immediate reward of each response token.
        values: the critic's value of each response token, of the state before it.
    """
    order, ends = _trajectories(rows)
    raw = gae(rewards[order], values[order], ends, gamma=critic.gamma, lam=critic.lam)
    reached = raw + values[order]
    advantages, returns = np.zeros_like(values), np.zeros_like(values)
    advantages[order] = whiten(raw) if critic.whiten else raw
    returns[order] = reached
    metrics = {
        "value_mean": values[order].mean(),
        "return_mean": reached.mean(),
        "advantage_mean": raw.mean(),
        "advantage_std": raw.std(),
        "explained_variance": _explained_variance(values[order], reached),
    }
    return Estimates(advantages, returns, {name: float(x) for name, x in metrics.items()})


def gae(
    rewards: Floats, values: Floats, ends: NDArray[np.bool_], *, gamma: float, lam: float
) -> Floats:
    """Return the advantage of each step: arXiv 1506.02438, equations 12 and 16.

        delta_t = r_t + gamma V_(t+1) - V_t        A_t = delta_t + gamma lam A_(t+1)

    Args:
        rewards: of the steps of several trajectories, one after the other.
        values: of the state before each step.
        ends: whether a step is the last of its trajectory; V and A after it are 0.
        gamma: the discount.
        lam: the factor of later differences.
    """
    advantages = np.empty_like(values)
    value = advantage = 0.0
    steps = zip(rewards.tolist(), values.tolist(), ends.tolist(), strict=True)
    for t, (reward, here, is_last) in reversed(list(enumerate(steps))):
        if is_last:
            value = advantage = 0.0
        advantage = reward + gamma * value - here + gamma * lam * advantage
        value = here
        advantages[t] = advantage
    return advantages


def whiten(advantages: Floats) -> Floats:
    """Return the advantages with mean 0 and deviation 1, with Bessel's correction.

    A single one is returned as it is.
    """
    if len(advantages) < 2:
        return advantages
    variance = advantages.var(ddof=1)
    whitened: Floats = (advantages - advantages.mean()) / np.sqrt(variance + WHITENING_EPSILON)
    return whitened


def _trajectories(rows: pl.DataFrame) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return where the steps of all trajectories are in the flat responses, and which are last."""
    trajectory = rows.select(pl.struct(TRAJECTORY).rank("dense")).to_series().to_numpy()
    of_token = np.repeat(trajectory, rows["response_ids"].list.len().to_numpy())
    sampled = flat_values(rows, "response_mask") > 0
    position = np.repeat(flat_values(rows, "call_positions"), call_lengths(rows))
    order = np.lexsort((position, of_token))  # stable: the tokens of a call stay in order
    order = order[sampled[order]]
    ends = np.append(np.diff(of_token[order]) != 0, True)
    return order, ends


def _explained_variance(values: Floats, returns: Floats) -> float:
    """Return the share of the returns' variance that the values explain; 0 for equal returns."""
    variance = returns.var()
    return float(1 - (returns - values).var() / variance) if variance > 0 else 0.0
