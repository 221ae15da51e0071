"""Calls of trained policies with their credit."""

import polars as pl

from ltrain_transforms.tables.column import EXECUTION, FLOAT, STRING, Column, Table

TRANSITIONS = Table(
    "transitions",
    "One call of a trained policy.",
    (
        EXECUTION,
        Column("call_id", STRING, "The call."),
        Column("group_id", STRING, "What its execution was compared within."),
        Column("t", pl.Int32(), "Order of the call in its execution."),
        Column("agent", STRING, "The agent that made it."),
        Column("policy", STRING, "The trained policy."),
        Column("policy_version", pl.Int32(), "The version that was sampled."),
        Column("state_digest", STRING, "Hash of the state it saw."),
        Column(
            "reward",
            FLOAT,
            "Sum of what rules gave to this call; under `gae` also to what followed, and the outcome.",
        ),
        Column("returns", FLOAT, "Reward-to-go from this call on."),
        Column(
            "outcome_advantage", FLOAT, "Its execution's or part's; null: nothing to compare with."
        ),
        Column("process_advantage", FLOAT, "From call rewards, against the group."),
        Column("step_advantage", FLOAT, "From step estimators; 0 where there is none."),
        Column("advantage", FLOAT, "The three, fused with the recipe's weights, or null."),
    ),
)
