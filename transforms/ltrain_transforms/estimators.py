"""Advantages of executions within their group: one function an estimator, listed by name.

An estimator maps the rewards of a group, one an execution, to advantages. An execution counts once,
however many calls it made.
"""

from collections.abc import Callable

import polars as pl

EPSILON = 1e-6
"""Added to the standard deviation, as in verl's `compute_grpo_outcome_advantage`."""

SAME = 1e-9
"""Rewards or advantages nearer than this are equal: sums of the same floats may differ by less."""


def grpo(reward: pl.Expr) -> pl.Expr:
    """(r - mean) / (std + epsilon) over the group (DeepSeekMath, arXiv 2402.03300, section 4.1)."""
    return (reward - reward.mean()) / (reward.std() + EPSILON)


ESTIMATORS: dict[str, Callable[[pl.Expr], pl.Expr]] = {"grpo": grpo}
