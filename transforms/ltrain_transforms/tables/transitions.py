"""The table `transitions`: calls of trained policies with their credit."""

import polars as pl

from ltrain_transforms.tables.column import EXECUTION, FLOAT, STRING, Column, Table

TRANSITIONS = Table(
    "transitions",
    "One call of a trained policy.",
    (
        EXECUTION,
        Column("call_id", STRING, "The call."),
        Column("group_id", STRING, "The group that its execution was compared in."),
        Column("t", pl.Int32(), "Position of the call in its execution."),
        Column("agent", STRING, "The agent that made it."),
        Column("policy", STRING, "The trained policy."),
        Column("policy_version", pl.Int32(), "The version that was sampled."),
        Column("state_digest", STRING, "Hash of the state that the call found."),
        Column(
            "reward",
            FLOAT,
            "Rewards of this call; with `gae`, all rewards up to the next trained call.",
        ),
        Column("returns", FLOAT, "Return from this call on."),
        Column("outcome_advantage", FLOAT, "Advantage of its execution, or null without peers."),
        Column("process_advantage", FLOAT, "Advantage from call rewards, compared with the group."),
        Column("step_advantage", FLOAT, "Advantage from a step estimator; 0 without one."),
        Column("advantage", FLOAT, "The three combined with the recipe's weights, or null."),
    ),
)
