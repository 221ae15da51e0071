"""The tables of training: `transitions`, `samples` and `drops`."""

import polars as pl

from ltrain_transforms.tables.column import (
    EXECUTION,
    FLOAT,
    IDS,
    STRING,
    STRINGS,
    WEIGHTS,
    Column,
    Table,
)

SAMPLES = Table(
    "samples",
    "One training row: one or more transitions whose tokens continue each other.",
    (
        Column("sample_id", STRING, "Hash of its transitions."),
        EXECUTION,
        Column("rollout_id", STRING, "The rollout."),
        Column("group_id", STRING, "The group."),
        Column("policy", STRING, "The trained policy."),
        Column(
            "tokens",
            STRING,
            "sampled (as the server reported them), or rendered: of a call, or of all.",
        ),
        Column("prompt_ids", IDS, "Context before the first trained token."),
        Column("response_ids", IDS, "Sampled tokens, and the tokens between the calls."),
        Column("response_mask", pl.List(pl.UInt8()), "1 where the token was sampled."),
        Column("rollout_logprobs", WEIGHTS, "As sampled; 0 where the mask is 0."),
        Column("advantages", WEIGHTS, "Per token; 0 where the mask is 0."),
        Column(
            "token_rewards",
            WEIGHTS,
            "Immediate rewards, at the last token of each call; no returns.",
        ),
        Column(
            "loss_weight", WEIGHTS, "Weight of each token in the loss, by train.loss_weighting."
        ),
        Column("temperature", pl.Float32(), "Sampling temperature of every token."),
        Column(
            "call_offsets", IDS, "Index in the response where each call's sampled tokens begin."
        ),
        Column(
            "call_constraints",
            STRINGS,
            "The grammar of each call whose ids the server masked, JSON; null for other calls.",
        ),
        Column("call_versions", pl.List(pl.Int32()), "The policy version of each call."),
        Column("call_positions", pl.List(pl.Int32()), "Position of each call in its execution."),
        Column("next_sample_id", STRING, "The row that continues this one, or null."),
        Column("transition_ids", STRINGS, "The calls in it."),
        Column(
            "begins",
            STRING,
            "Why its first call does not continue an earlier row: "
            "[the reasons](samples.md#why-a-row-begins).",
        ),
        Column(
            "differs_from",
            STRING,
            "The call with which it shares the longest prefix of prompt and response, or null.",
        ),
        Column("differs_at", pl.Int32(), "Index of the first token of its prompt that differs."),
    ),
)


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


OTHER_SPAN = "not_a_call"
"""The reason of a span that describes no call, such as a transport's: the table `drops` has it, so
that every input is accounted for, but reports and manifests count it apart from drops."""


DROPS = Table(
    "drops",
    "One thing that was left out, with the reason.",
    (
        Column(
            "stage",
            STRING,
            "spans, calls, states, executions, rewards, groups or rows; of a conversion, exports.",
        ),
        Column(
            "id",
            STRING,
            "What was dropped; for an attribute of a call `span:attribute`, for an invalid span "
            "`span:execution`.",
        ),
        Column("reason", STRING, "The name of the reason."),
        Column("detail", STRING, "The reason as a sentence."),
    ),
)
