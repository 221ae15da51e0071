"""Rows for the trainer."""

import polars as pl

from ltrain_transforms.tables.column import EXECUTION, IDS, STRING, STRINGS, WEIGHTS, Column, Table

SAMPLES = Table(
    "samples",
    "One training row: one or more transitions, merged where the tokens allow.",
    (
        Column("sample_id", STRING, "Hash of its transitions."),
        EXECUTION,
        Column("rollout_id", STRING, "The rollout."),
        Column("group_id", STRING, "The group."),
        Column("policy", STRING, "The trained policy."),
        Column("tokens", STRING, "sampled (as the server reported) or rendered (SFT only)."),
        Column("prompt_ids", IDS, "Context before the first trained token."),
        Column("response_ids", IDS, "Sampled tokens, and what came between the calls."),
        Column("response_mask", pl.List(pl.UInt8()), "1 where the token was sampled."),
        Column("rollout_logprobs", WEIGHTS, "As sampled; 0 where the mask is 0."),
        Column("advantages", WEIGHTS, "Per token; 0 where the mask is 0."),
        Column("token_rewards", WEIGHTS, "Immediate, at each call's last token; never returns."),
        Column("loss_weight", WEIGHTS, "Per token: equal weight a rollout, call or token."),
        Column("temperature", pl.Float32(), "What every token of the row was sampled with."),
        Column("call_offsets", IDS, "Where in the response each call's sampled tokens begin."),
        Column("call_versions", pl.List(pl.Int32()), "The policy version of each call."),
        Column("next_sample_id", STRING, "The row that goes on where this one stops, or null."),
        Column("transition_ids", STRINGS, "The calls in it."),
        Column(
            "begins",
            STRING,
            "Why its first call joined no earlier row: first, conversation, branch, template, "
            "retokenised, rewritten, temperature or unknown.",
        ),
        Column(
            "differs_from",
            STRING,
            "The call whose tokens, prompt and response, it agrees with longest, or null.",
        ),
        Column("differs_at", pl.Int32(), "The first token of its prompt that differs, from 0."),
    ),
)
