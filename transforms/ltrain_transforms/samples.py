"""Transitions -> samples: what the trainer reads, token by token.

A transition without usable tokens, or in a row that is too long, is a drop; none of these filters
changes an advantage.
"""

from collections.abc import Iterator
from itertools import groupby
from typing import Any

import polars as pl

from ltrain_transforms.recipe import Recipe
from ltrain_transforms.rows import Row, Turn, following, merged, sample_id, weights
from ltrain_transforms.selection import dropped, gathered
from ltrain_transforms.tables import DROPS, SAMPLES

REASONS = {
    "no_tokens": "its token ids are missing, cut short, or disagree with their counts",
    "several_choices": "the server gave several choices, and which one the agent took is not known",
    "undelivered": "the client went away before the answer ended",
    "constrained": "guided decoding: its probabilities cannot be recomputed",
    "greedy": "temperature 0: there is no distribution to learn from",
    "no_version": "which version of the policy was sampled is not known",
    "too_long": "the row has more tokens than filter.max_tokens",
}

TOKENS = ("prompt_token_ids", "response_token_ids", "response_logprobs")
MEASURED = ("temperature", "constrained", "delivered")


def samples(
    recipe: Recipe, transitions: pl.DataFrame, calls: pl.DataFrame, executions: pl.DataFrame
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Give `samples` of the transitions of `executions`, and what is left out as `DROPS`."""
    tokens = calls.select("execution_id", "call_id", *TOKENS, *MEASURED)
    turns = (
        transitions.join(executions.select("execution_id", "rollout_id"), "execution_id")
        .join(tokens, ["execution_id", "call_id"])
        .sort("execution_id", "t")
        .with_columns(reason=_unusable())
    )
    left_out = turns.filter(pl.col("reason").is_not_null())
    usable = turns.filter(pl.col("reason").is_null())
    rows: list[dict[str, Any]] = []
    long: list[tuple[str, str]] = []
    for members in _by_execution(usable):
        longest = recipe.filter.max_tokens
        found = merged(map(_turn, members), longest)
        long += [(turn.call_id, "too_long") for r in found if len(r) > longest for turn in r.turns]
        rows += _cells(members[0], [r for r in found if len(r) <= longest], recipe.train.weigh)
    too_long = pl.DataFrame(long, {"call_id": pl.String, "reason": pl.String}, orient="row")
    drops = (dropped("rows", frame, "call_id", REASONS) for frame in (left_out, too_long))
    columns = {name: [cells[name] for cells in rows] for name in SAMPLES.schema}
    return pl.DataFrame(columns, SAMPLES.schema), gathered(DROPS, *drops)


def _unusable() -> pl.Expr:
    responses = pl.col("response_token_ids")
    spoken = responses.list.first().list.len()
    return (
        pl.when(pl.col("prompt_token_ids").is_null() | responses.is_null() | (spoken == 0))
        .then(pl.lit("no_tokens"))
        .when(responses.list.len() != 1).then(pl.lit("several_choices"))
        .when(~pl.col("delivered")).then(pl.lit("undelivered"))
        .when(pl.col("constrained")).then(pl.lit("constrained"))
        .when(pl.col("temperature") == 0).then(pl.lit("greedy"))
        .when(pl.col("policy_version").is_null()).then(pl.lit("no_version"))
    )  # fmt: skip


def _by_execution(turns: pl.DataFrame) -> Iterator[list[dict[str, Any]]]:
    for _, members in groupby(turns.iter_rows(named=True), key=lambda row: row["execution_id"]):
        yield list(members)


def _turn(row: dict[str, Any]) -> Turn:
    temperature = row["temperature"]
    return Turn(
        call_id=row["call_id"],
        t=row["t"],
        prompt=row["prompt_token_ids"],
        response=row["response_token_ids"][0],
        logprobs=row["response_logprobs"][0],
        temperature=1.0 if temperature is None else temperature,  # the API's default
        version=row["policy_version"],
        advantage=row["advantage"],
        reward=row["reward"],
    )


def _cells(execution: dict[str, Any], rows: list[Row], weigh: str) -> list[dict[str, Any]]:
    names = {id(row): sample_id(execution["execution_id"], row) for row in rows}
    shared = {
        name: execution[name] for name in ("execution_id", "rollout_id", "group_id", "policy")
    }
    return [
        {
            **shared,
            "sample_id": names[id(row)],
            "tokens": "sampled",
            "prompt_ids": row.prompt,
            "response_ids": row.response,
            "response_mask": row.mask,
            "rollout_logprobs": row.logprobs,
            "advantages": row.advantages,
            "token_rewards": row.rewards,
            "loss_weight": weight,
            "temperature": row.temperature,
            "call_offsets": row.offsets,
            "call_versions": [turn.version for turn in row.turns],
            "next_sample_id": None if after is None else names[id(after)],
            "transition_ids": [turn.call_id for turn in row.turns],
        }
        for row, weight, after in zip(rows, weights(rows, weigh), following(rows), strict=True)
    ]
