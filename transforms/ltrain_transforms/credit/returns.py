"""Call rewards -> returns, over all calls of an execution in causal order; the process advantage.

G_t = sum over k >= t of gamma^(turn_k - turn_t) r_k; a turn is one LLM call of any agent.

The process advantage is a call's return, less the group's mean at the same turn of the same agent.
It is not divided by a standard deviation, which would amplify noise to the size of the signal.
"""

import polars as pl

from ltrain_transforms.estimators import SAME
from ltrain_transforms.recipe import Process


def discounted_returns(calls: pl.DataFrame, gamma: float) -> pl.Series:
    """Return G of every row of `calls` (`execution`, `turn`, `effective_reward`), in call order.

    Sums over 1, 2, 4, … rows are doubled until they reach the end of the longest execution. This
    never divides by a power of gamma, so long executions lose no precision.
    """
    reward = pl.col("effective_reward")
    if gamma == 1.0:
        return calls.select(reward.cum_sum(reverse=True).over("execution")).to_series()
    sums = calls.select("execution", turn=pl.col("turn").cast(pl.Float64), sum=reward)
    longest: int = calls.group_by("execution").len().select(pl.col("len").max()).item() or 0
    reach = 1
    while reach < longest:
        further = pl.col("sum").shift(-reach)
        turns = pl.col("turn").shift(-reach) - pl.col("turn")
        inside = pl.col("execution").shift(-reach) == pl.col("execution")
        more = pl.when(inside).then(pl.lit(gamma).pow(turns) * further).otherwise(0.0)
        sums = sums.with_columns(sum=pl.col("sum") + more)
        reach *= 2
    return sums["sum"]


def step_rewards(calls: pl.DataFrame, policy: str) -> pl.Series:
    """Sum the effective rewards from each call of `policy` up to its next call; null elsewhere.

    Rewards before the policy's first call belong to no step.
    """
    trained = pl.col("policy").eq_missing(policy)
    begins = pl.col("execution").ne_missing(pl.col("execution").shift(1))
    steps = calls.select("effective_reward", trained=trained, step=(trained | begins).cum_sum())
    total = pl.col("effective_reward").sum().over("step")
    return steps.select(pl.when("trained").then(total)).to_series()


def with_returns(calls: pl.DataFrame, process: Process) -> pl.DataFrame:
    """Add `returns` to all calls, which must be in call order."""
    if process.returns == "uniform":
        return calls.with_columns(returns=pl.col("effective_reward").sum().over("execution"))
    gamma = process.gamma if process.returns == "discounted" else 1.0
    return calls.with_columns(returns=discounted_returns(calls, gamma))


def process_advantages(llm: pl.DataFrame, process: Process) -> pl.DataFrame:
    """Add `process_advantage` to LLM calls with `returns`; 0 where a call has no peer."""
    if process.baseline == "none":
        return llm.with_columns(process_advantage=pl.col("returns"))
    peers = ("group", "agent_node", "turn_index")
    centred = pl.col("returns") - pl.col("returns").mean().over(peers)
    execution = pl.col("execution")
    # parallel calls of one execution are no peers of each other
    has_peers = (execution.min() != execution.max()).over(peers)
    advantage = pl.when(has_peers & (centred.abs() > SAME)).then(centred).otherwise(0.0)
    return llm.with_columns(process_advantage=advantage)
