"""The process advantage: a call's return against the group's at the same agent's k-th call.

It is not divided by a deviation, or noise would weigh as much as success.
"""

import polars as pl

from ltrain_transforms.credit.returns import discounted
from ltrain_transforms.estimators import SAME
from ltrain_transforms.recipe import Process


def with_returns(calls: pl.DataFrame, process: Process) -> pl.DataFrame:
    """Add `returns` to all calls, which are in call order."""
    if process.returns == "uniform":
        return calls.with_columns(returns=pl.col("felt").sum().over("execution"))
    gamma = process.gamma if process.returns == "discounted" else 1.0
    return calls.with_columns(returns=discounted(calls, gamma))


def against_group(llm: pl.DataFrame, process: Process) -> pl.DataFrame:
    """Add `process_advantage` to LLM calls with `returns`; 0 where a call has no peer."""
    if process.baseline == "none":
        return llm.with_columns(process_advantage=pl.col("returns"))
    peers = ("group", "scene", "turn_index")
    centred = pl.col("returns") - pl.col("returns").mean().over(peers)
    who = pl.col("execution")
    others = (who.min() != who.max()).over(peers)  # its own calls in parallel are no peers
    felt = pl.when(others & (centred.abs() > SAME)).then(centred).otherwise(0.0)
    return llm.with_columns(process_advantage=felt)
