"""The process advantage: a call's return, less the group's mean at the same turn of the same agent.

It is not divided by a standard deviation, which would amplify noise to the size of the signal.
"""

import polars as pl

from ltrain_transforms.credit.returns import discounted_returns
from ltrain_transforms.estimators import SAME
from ltrain_transforms.recipe import Process


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
