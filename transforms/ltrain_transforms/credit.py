"""Rewards -> advantages: across the executions of a group, and across the calls of an execution.

The outcome advantage is one value an execution. The process advantage is a call's return over the
later calls, all agents' included, less the group's mean return at the same agent's k-th call; it is
not divided by a deviation, or noise would weigh as much as success. They are added, with weights.
"""

from hashlib import sha256
from itertools import groupby

import polars as pl

from ltrain_transforms.estimators import ESTIMATORS, SAME
from ltrain_transforms.recipe import Credit, Policy, Process
from ltrain_transforms.selection import dropped, trained
from ltrain_transforms.tables import TRANSITIONS

REASONS = {
    "alone": "no other execution of its group counts, so there is nothing to compare it with",
    "no_spread": "all executions of its group are worth the same, in outcome and in process",
    "low_spread": "filter.groups keeps the groups with the widest outcome",
}


def compared(executions: pl.DataFrame, outcomes: pl.DataFrame, estimator: str) -> pl.DataFrame:
    """Add `outcome_reward`, `outcome_advantage` and its group's `spread` to the executions.

    An execution without group, or alone in it, has a null advantage.
    """
    reward = pl.col("outcome_reward")
    rewarded = executions.join(outcomes.rename({"reward": "outcome_reward"}), "execution_id")
    alone = pl.col("group_id").is_null() | (pl.len().over("group_id") < 2)
    differ = reward.max() - reward.min() > SAME
    advantage = pl.when(differ).then(ESTIMATORS[estimator](reward)).otherwise(0.0)
    return rewarded.sort("execution_id").with_columns(
        outcome_advantage=pl.when(~alone).then(advantage.over("group_id")),
        spread=pl.when(differ).then(reward.std()).otherwise(0.0).over("group_id"),
    )


def transitions(
    compared: pl.DataFrame,
    calls: pl.DataFrame,
    rewards: pl.DataFrame,
    policy: Policy,
    credit: Credit,
) -> pl.DataFrame:
    """Make `transitions` of the executions that count; `calls` have a `state_digest` more."""
    given = rewards.filter(pl.col("call_id").is_not_null()).group_by("call_id")
    steps = (
        calls.join(compared.select("execution_id", "group_id", "outcome_advantage"), "execution_id")
        .join(given.agg(reward=pl.col("value").sum()), "call_id", "left")
        .with_columns(pl.col("reward").fill_null(0.0))
        .sort("execution_id", "seq")
    )
    process = _against_group(_with_returns(steps, credit.process), credit.process)
    ours = process.filter(trained(policy)).with_columns(
        t=pl.col("seq"), policy=pl.lit(policy.name), step_advantage=pl.lit(0.0)
    )
    fused = pl.col("outcome_advantage") + credit.process.weight * pl.col("process_advantage")
    return TRANSITIONS.select(ours.with_columns(advantage=fused).lazy()).collect()


def _with_returns(steps: pl.DataFrame, process: Process) -> pl.DataFrame:
    """Add `returns` to all calls, in call order within each execution."""
    if process.returns == "uniform":
        return steps.with_columns(returns=pl.col("reward").sum().over("execution_id"))
    gamma = process.gamma if process.returns == "discounted" else 1.0
    turn = (pl.col("kind") == "llm").cum_sum().over("execution_id")
    rows = steps.select("execution_id", turn.alias("turn"), "reward").iter_rows()
    returns: list[float] = []
    for _, members in groupby(rows, key=lambda row: row[0]):
        returns += _discounted([(turn, reward) for _, turn, reward in members], gamma)
    return steps.with_columns(returns=pl.Series(returns, dtype=pl.Float64))


def _discounted(turns: list[tuple[int, float]], gamma: float) -> list[float]:
    """G_t = sum over k >= t of gamma^(turn_k - turn_t) r_k; a turn is one LLM call."""
    total, later = 0.0, turns[-1][0]
    backwards = []
    for turn, reward in reversed(turns):
        total = reward + gamma ** (later - turn) * total
        later = turn
        backwards.append(total)
    return backwards[::-1]


def _against_group(steps: pl.DataFrame, process: Process) -> pl.DataFrame:
    """Keep the LLM calls, with `process_advantage`; 0 where a call has no peer."""
    llm = steps.filter(pl.col("kind") == "llm").with_columns(
        pl.col("agent", "node").fill_null("").name.prefix("of_"),
        compared=pl.coalesce("group_id", "execution_id"),
    )
    if process.baseline == "none":
        return llm.with_columns(process_advantage=pl.col("returns"))
    place = ("of_agent", "of_node")
    kth = llm.with_columns(kth=pl.int_range(pl.len()).over("execution_id", *place))
    peers = ("compared", *place, "kth")
    centred = pl.col("returns") - pl.col("returns").mean().over(peers)
    felt = pl.when((pl.len().over(peers) > 1) & (centred.abs() > SAME)).then(centred).otherwise(0.0)
    return kth.with_columns(process_advantage=felt)


def chosen(
    compared: pl.DataFrame, transitions: pl.DataFrame, groups: int | None
) -> tuple[pl.Series, pl.DataFrame]:
    """Give the ids of the executions to train on, and the others as `DROPS`.

    `groups` keeps that many with the widest outcome; among equals the process decides, then a hash,
    so that no task is favoured by its name.
    """
    felt = transitions.group_by("execution_id").agg(
        felt=pl.max_horizontal(
            pl.col("advantage").abs().max(), pl.col("process_advantage").abs().max()
        )
    )
    marked = compared.join(felt, "execution_id", "left").with_columns(
        moved=pl.col("felt").fill_null(0.0).max().over("group_id")
    )
    alone = pl.col("outcome_advantage").is_null()
    flat = (pl.col("spread") <= SAME) & (pl.col("moved") <= SAME)
    marked = marked.with_columns(
        reason=pl.when(alone).then(pl.lit("alone")).when(flat).then(pl.lit("no_spread"))
    )
    if groups is not None:
        marked = _widest(marked, groups)
    left_out = marked.filter(pl.col("reason").is_not_null())
    kept = marked.filter(pl.col("reason").is_null())["execution_id"]
    return kept, dropped("groups", left_out, "execution_id", REASONS)


def _widest(marked: pl.DataFrame, groups: int) -> pl.DataFrame:
    running = marked.filter(pl.col("reason").is_null()).unique("group_id")
    ties = [sha256(name.encode()).hexdigest() for name in running["group_id"]]
    order = running.with_columns(tie=pl.Series(ties, dtype=pl.String))
    ranked = order.sort("spread", "moved", "tie", descending=[True, True, False])
    best = ranked["group_id"].head(groups)
    narrow = pl.col("reason").is_null() & ~pl.col("group_id").is_in(best.implode())
    return marked.with_columns(
        reason=pl.when(narrow).then(pl.lit("low_spread")).otherwise("reason")
    )
