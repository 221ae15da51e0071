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
        Column("reward", FLOAT, "What rules gave to this call; under `gae` all up to the next."),
        Column("returns", FLOAT, "Reward-to-go from this call on."),
        Column("outcome_advantage", FLOAT, "Its execution's, or null: it is alone."),
        Column("process_advantage", FLOAT, "From call rewards, against the group."),
        Column("step_advantage", FLOAT, "From step estimators; 0 where there is none."),
        Column("advantage", FLOAT, "The three, fused with the recipe's weights, or null."),
    ),
)
