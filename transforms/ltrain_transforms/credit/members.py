"""Executions and rewards -> what outcome estimators compare: the frame `MEMBERS`.

A member is a part of an execution: the whole of it, or what one agent did in it.
"""

from collections.abc import Mapping, Sequence

import polars as pl

from ltrain_transforms.estimators import COMPONENT, MEMBERS
from ltrain_transforms.recipe import Credit, Peers, Reward

KEYS = ("execution_id", "part")


def members(
    executions: pl.DataFrame,
    rewards: pl.DataFrame,
    calls: pl.DataFrame,
    told_rewards: Sequence[Reward],
    credit: Credit,
) -> pl.DataFrame:
    """Give `MEMBERS` with `execution_id` and `part` before, ordered by these.

    Args:
        executions: those that are compared, with `outcome_reward`.
        calls: `NARROW`.
        told_rewards: the recipe's.
    """
    acted = _acted(calls)
    if credit.outcome.peers is Peers.GROUP:  # those count too that made no call
        nothing = pl.lit(None, pl.String)
        parts = executions.select("execution_id", part=nothing, sort=nothing, under=nothing)
    else:
        parts = acted.select(*KEYS, "sort", "under")
    told = ("execution_id", "group_id", "run_id", "mode", "task_id", "domain", "end")
    joined = (
        parts.join(executions.select(*told, reward="outcome_reward"), "execution_id")
        .join(acted.select(*KEYS, "calls", "tokens"), KEYS, "left", nulls_equal=True)
        .join(_components(rewards, told_rewards), "execution_id", "left")
        .sort(KEYS)
    )
    if credit.combine == "rewards":
        joined = _with_call_rewards(joined, calls, rewards)
    return _numbered(joined)


def _acted(calls: pl.DataFrame) -> pl.DataFrame:
    """Count transitions and sampled tokens of each part; tokens are null where a call's are."""
    length = pl.col("sampled_tokens")
    ours = calls.lazy().filter(pl.col("trained_by").is_not_null())
    return (
        ours.group_by(KEYS)
        .agg(
            pl.col("sort", "under").first(),
            calls=pl.len(),
            tokens=pl.when(length.null_count() == 0).then(length.cast(pl.UInt64).sum()),
        )
        .collect()
    )


def component_weights(told_rewards: Sequence[Reward]) -> Mapping[str, float]:
    """Give the weight of each reward by its component's column."""
    return {f"{COMPONENT}{reward.name}": reward.weight for reward in told_rewards}


def _components(rewards: pl.DataFrame, told_rewards: Sequence[Reward]) -> pl.DataFrame:
    """Give what each reward gave to the whole execution, before its weight."""
    whole = rewards.filter(pl.col("call_id").is_null())
    weights = {reward.name: reward.weight for reward in told_rewards if reward.weight}
    rule, value = pl.col("rule"), pl.col("value")
    return whole.group_by("execution_id").agg(
        (value.filter(rule == name).sum() / weights.get(name, 1.0)).alias(f"{COMPONENT}{name}")
        for name in sorted(whole["rule"].unique())
    )


def _with_call_rewards(
    joined: pl.DataFrame, calls: pl.DataFrame, rewards: pl.DataFrame
) -> pl.DataFrame:
    """Add to each part's return what its own calls were given (the plain sum of the paper)."""
    given = rewards.filter(pl.col("call_id").is_not_null())
    number = joined.select("execution_id").unique(maintain_order=True).with_row_index("number")
    own = (
        calls.select("execution_id", "call_id", "part", "seq")
        .join(given.select("execution_id", "call_id", "value"), ["execution_id", "call_id"])
        .join(number, "execution_id")
        .sort("number", "seq", maintain_order=True)
        .group_by(KEYS, maintain_order=True)
        .agg(pl.col("value").sum())
    )
    summed = joined.join(own, KEYS, "left", nulls_equal=True, maintain_order="left")
    total = pl.col("reward") + pl.col("value").fill_null(0.0)
    return summed.with_columns(reward=total).drop("value")


def _numbered(joined: pl.DataFrame) -> pl.DataFrame:
    """Number groups and tracks, and fill in lengths that nobody said."""
    task = pl.coalesce("task_id", "domain")
    track = pl.concat_str("run_id", "mode", task, "sort", separator="\x1f", ignore_nulls=True)
    known = pl.col("tokens").fill_null(pl.col("tokens").mean()).fill_null(1.0)
    told = joined.with_columns(
        pl.col("calls").fill_null(0),
        pl.col(f"^{COMPONENT}.*$").fill_null(0.0),
        key=_compared_within(),
        track=track.rank("dense"),
        tokens=pl.when(pl.col("calls").is_null()).then(0.0).otherwise(known),
    )
    numbered = told.with_columns(group=pl.col("key").rank("dense"), peers=pl.len().over("key"))
    columns = [pl.col(name).cast(dtype) for name, dtype in MEMBERS.items()]
    return numbered.select(*KEYS, *columns, pl.col(f"^{COMPONENT}.*$")).rechunk()


def _compared_within() -> pl.Expr:
    """Name what a member is compared within: its siblings, else its group; else itself."""
    place = ("execution_id", "under", "sort")
    siblings = pl.col("under").is_not_null() & (pl.len().over(place) > 1)
    sort = pl.col("sort").fill_null("")
    group = pl.concat_str("group_id", sort, separator="\x1e")
    own = pl.concat_str("execution_id", pl.col("part").fill_null(""), separator="\x1d")
    return (
        pl.when(siblings)
        .then(pl.concat_str(*place, separator="\x1f"))
        .otherwise(pl.coalesce(group, own))
    )
