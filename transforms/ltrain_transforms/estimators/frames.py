"""The frames that estimators read: `MEMBERS`, one row a compared execution or part; `STEPS`.

An outcome estimator maps `MEMBERS` to one advantage a row, null where a comparison lacks a second
member. A step estimator maps `STEPS` to one advantage a row, 0 where a step has no peer. The frames
hold no text and no tokens, and their order does not depend on storage.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import polars as pl

EPSILON = 1e-6
"""Added to a standard deviation, as in verl's `compute_grpo_outcome_advantage`."""

SAME = 1e-9
"""Rewards or advantages that differ by less are equal: rounding may cause such differences."""

COMPONENT = "reward:"
"""Prefix of the column with the sum of one reward before its weight; its name follows."""

MEMBERS = pl.Schema(
    {
        "group": pl.UInt32(),  # number of the group that it is compared within
        "peers": pl.UInt32(),  # members of that group, itself included; 1 without a group
        "track": pl.UInt32(),  # task and agent that share a running baseline, as a number
        "end": pl.Int64(),  # when it ended, nanoseconds
        "reward": pl.Float64(),  # its return
        "calls": pl.UInt32(),  # number of its transitions
        "tokens": pl.Float64(),  # tokens sampled in them
    }
)
"""Columns of a member; `reward:<name>` follows for each reward of whole executions. A member is
an execution, or one agent's part of it. Rows are ordered by execution."""

STEPS = pl.Schema(
    {
        "execution": pl.UInt32(),  # number of the execution
        "group": pl.UInt32(),  # number of the group that it is compared within
        "policy": pl.UInt32(),  # number of the trained policy
        "place": pl.UInt32(),  # number of policy, agent and node together
        "anchor": pl.UInt32(),  # number of group, place and state; null where the state is unknown
        "turn_index": pl.UInt32(),  # earlier calls of the execution in this place
        "reward": pl.Float64(),  # rewards of the calls from this one up to the next trained one
        "outcome": pl.Float64(),  # the outcome at the policy's last call of the execution, else 0
        "returns": pl.Float64(),  # discounted return, including the outcome at the end
    }
)
"""Columns of a step: a trained call. Rows are ordered by execution and call order."""


@dataclass(frozen=True, slots=True)
class OutcomeSettings:
    """The settings of outcome estimators in a recipe."""

    decay: float = 0.95
    """Weight of the past in an exponential mean."""
    weights: Mapping[str, float] = field(default_factory=dict)
    """Weight of each reward, by its component column."""


@dataclass(frozen=True, slots=True)
class StepSettings:
    """The settings of step estimators in a recipe."""

    gamma: float = 0.95
    """Discount a turn."""
    history: int = 2
    """Earlier states that must be equal too for `hgpo`, at most."""
    power: float = 1.0
    """Exponent by which the weight of a longer history grows."""
    scale: Literal["none", "std"] = "none"
    """Whether differences are divided by the standard deviation of the peers."""


OutcomeEstimator = Callable[[pl.DataFrame, OutcomeSettings], pl.Series]
StepEstimator = Callable[[pl.DataFrame, StepSettings], pl.Series]
