"""What estimators are given: one row a compared whole, or one row a step.

An outcome estimator maps `MEMBERS` to one advantage a row, null where there is nothing to compare
with. A step estimator maps `STEPS` to one advantage a row, 0 where a step has no peer. Neither
sees text, tokens or the order in which rows were stored.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import polars as pl

EPSILON = 1e-6
"""Added to a standard deviation, as in verl's `compute_grpo_outcome_advantage`."""

SAME = 1e-9
"""Rewards or advantages nearer than this are equal: sums of the same floats may differ by less."""

COMPONENT = "reward:"
"""Before a reward's name: the column of what that reward alone gave, before its weight."""

MEMBERS = pl.Schema(
    {
        "group": pl.UInt32(),  # what the member is compared within, a number
        "peers": pl.UInt32(),  # members of that group, itself included; 1 where it has no group
        "track": pl.UInt32(),  # what a baseline over time is kept for: its task, and its agent
        "end": pl.Int64(),  # when it ended, nanoseconds
        "reward": pl.Float64(),  # its return
        "calls": pl.UInt32(),  # its transitions
        "tokens": pl.Float64(),  # tokens sampled in them
    }
)
"""Columns of a member, and one `reward:<name>` for each reward of the whole execution. A member is
an execution, or one agent's part of it; rows are ordered by execution."""

STEPS = pl.Schema(
    {
        "execution": pl.UInt32(),  # the execution, a number
        "group": pl.UInt32(),  # the group it is compared within
        "policy": pl.UInt32(),  # the trained policy
        "place": pl.UInt32(),  # policy, agent and node
        "anchor": pl.UInt32(),  # equal in one group, place and state; null where none was seen
        "turn_index": pl.UInt32(),  # how many calls the execution made in this place before
        "reward": pl.Float64(),  # what calls were given from this one up to the next trained one
        "outcome": pl.Float64(),  # the outcome at the policy's last call of the execution, else 0
        "returns": pl.Float64(),  # discounted return, the outcome at the end included
    }
)
"""Columns of a step: a trained call. Rows are ordered by execution and call order."""


@dataclass(frozen=True, slots=True)
class OutcomeSettings:
    """What a recipe says to an outcome estimator."""

    decay: float = 0.95
    """Of an exponential mean, what is kept of the past."""
    weights: Mapping[str, float] = field(default_factory=dict)
    """By component's column: the weight of that reward."""


@dataclass(frozen=True, slots=True)
class StepSettings:
    """What a recipe says to a step estimator."""

    gamma: float = 0.95
    """Discount a turn."""
    history: int = 2
    """States before the current one that a step is compared by."""
    power: float = 1.0
    """How fast the weight of a longer history grows."""
    scale: Literal["none", "std"] = "none"
    """Whether a difference is divided by the deviation of its peers."""


OutcomeEstimator = Callable[[pl.DataFrame, OutcomeSettings], pl.Series]
StepEstimator = Callable[[pl.DataFrame, StepSettings], pl.Series]
