"""Executions and rewards -> `MEMBERS`, the frame that outcome estimators read.

A member is a part of an execution: the whole of it, or one agent's calls in it.
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
    reward_rules: Sequence[Reward],
    credit: Credit,
) -> pl.DataFrame:
    """Return `MEMBERS` preceded by `execution_id` and `part`, and sorted by these.

    Args:
        executions: those that are compared, with `outcome_reward`.
        calls: `CREDIT_INPUTS`.
    """
    counts = _count_by_part(calls)
    if credit.outcome.peers is Peers.GROUP:  # executions without a trained call are members too
        nothing = pl.lit(None, pl.String)
        parts = executions.select(
            "execution_id", part=nothing, part_role=nothing, parent_agent=nothing
        )
    else:
        parts = counts.select(*KEYS, "part_role", "parent_agent")
    columns = ("execution_id", "group_id", "run_id", "mode", "task_id", "domain", "end")
    joined = (
        parts.join(executions.select(*columns, reward="outcome_reward"), "execution_id")
        .join(counts.select(*KEYS, "calls", "tokens"), KEYS, "left", nulls_equal=True)
        .join(_components(rewards, reward_rules), "execution_id", "left")
        .sort(KEYS)
    )
    if credit.combine == "rewards":
        joined = _add_call_rewards(joined, calls, rewards)
    return _to_members(joined)


def _count_by_part(calls: pl.DataFrame) -> pl.DataFrame:
    """Count transitions and sampled tokens of each part; tokens are null where a call's are."""
    length = pl.col("sampled_tokens")
    trained = calls.lazy().filter(pl.col("policy").is_not_null())
    return (
        trained.group_by(KEYS)
        .agg(
            pl.col("part_role", "parent_agent").first(),
            calls=pl.len(),
            tokens=pl.when(length.null_count() == 0).then(length.cast(pl.UInt64).sum()),
        )
        .collect()
    )


def component_weights(reward_rules: Sequence[Reward]) -> Mapping[str, float]:
    """Return the weight of each reward by the name of its component column."""
    return {f"{COMPONENT}{reward.name}": reward.weight for reward in reward_rules}


def _components(rewards: pl.DataFrame, reward_rules: Sequence[Reward]) -> pl.DataFrame:
    """Return a column for each reward: its sum over an execution as a whole, before its weight."""
    of_execution = rewards.filter(pl.col("call_id").is_null())
    weights = {reward.name: reward.weight for reward in reward_rules if reward.weight}
    rule, value = pl.col("rule"), pl.col("value")
    return of_execution.group_by("execution_id").agg(
        (value.filter(rule == name).sum() / weights.get(name, 1.0)).alias(f"{COMPONENT}{name}")
        for name in sorted(of_execution["rule"].unique())
    )


def _add_call_rewards(
    joined: pl.DataFrame, calls: pl.DataFrame, rewards: pl.DataFrame
) -> pl.DataFrame:
    """Add the rewards of a part's own calls to its return (the plain sum of the paper)."""
    of_calls = rewards.filter(pl.col("call_id").is_not_null())
    number = joined.select("execution_id").unique(maintain_order=True).with_row_index("number")
    sums = (
        calls.select("execution_id", "call_id", "part", "seq")
        .join(of_calls.select("execution_id", "call_id", "value"), ["execution_id", "call_id"])
        .join(number, "execution_id")
        .sort("number", "seq", maintain_order=True)
        .group_by(KEYS, maintain_order=True)
        .agg(pl.col("value").sum())
    )
    added = joined.join(sums, KEYS, "left", nulls_equal=True, maintain_order="left")
    total = pl.col("reward") + pl.col("value").fill_null(0.0)
    return added.with_columns(reward=total).drop("value")


def _to_members(joined: pl.DataFrame) -> pl.DataFrame:
    """Number groups and tracks, and fill in unknown lengths with the mean."""
    task = pl.coalesce("task_id", "domain")
    track = pl.concat_str("run_id", "mode", task, "part_role", separator="\x1f", ignore_nulls=True)
    length = pl.col("tokens").fill_null(pl.col("tokens").mean()).fill_null(1.0)
    keyed = joined.with_columns(
        pl.col("calls").fill_null(0),
        pl.col(f"^{COMPONENT}.*$").fill_null(0.0),
        key=_group_key(),
        track=track.rank("dense"),
        tokens=pl.when(pl.col("calls").is_null()).then(0.0).otherwise(length),
    )
    numbered = keyed.with_columns(group=pl.col("key").rank("dense"), peers=pl.len().over("key"))
    columns = [pl.col(name).cast(dtype) for name, dtype in MEMBERS.items()]
    return numbered.select(*KEYS, *columns, pl.col(f"^{COMPONENT}.*$")).rechunk()


def _group_key() -> pl.Expr:
    """Return what a member is compared within: its siblings, else its group, else itself."""
    siblings = ("execution_id", "parent_agent", "part_role")
    has_siblings = pl.col("parent_agent").is_not_null() & (pl.len().over(siblings) > 1)
    role = pl.col("part_role").fill_null("")
    group = pl.concat_str("group_id", role, separator="\x1e")
    itself = pl.concat_str("execution_id", pl.col("part").fill_null(""), separator="\x1d")
    return (
        pl.when(has_siblings)
        .then(pl.concat_str(*siblings, separator="\x1f"))
        .otherwise(pl.coalesce(group, itself))
    )
