"""Call rewards -> returns, over all calls of an execution in causal order.

G_t = sum over k >= t of gamma^(turn_k - turn_t) r_k; a turn is one LLM call, whoever made it.
"""

import polars as pl


def discounted(calls: pl.DataFrame, gamma: float) -> pl.Series:
    """Give G of every row of `calls` (`execution`, `turn`, `felt`), which is in call order.

    Sums of 1, 2, 4, … rows are doubled until they reach the longest execution's end: no power of
    gamma is ever divided by, so long executions lose nothing.
    """
    if gamma == 1.0:
        return calls.select(pl.col("felt").cum_sum(reverse=True).over("execution")).to_series()
    sums = calls.select("execution", turn=pl.col("turn").cast(pl.Float64), sum="felt")
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


def immediate(calls: pl.DataFrame, policy: str) -> pl.Series:
    """Sum what calls were given from each call of `policy` up to the next; null elsewhere.

    What came before the first of its calls is nothing that the policy did.
    """
    ours = pl.col("trained_by").eq_missing(policy)
    begins = pl.col("execution").ne_missing(pl.col("execution").shift(1))
    reached = calls.select("felt", ours=ours, stretch=(ours | begins).cum_sum())
    return reached.select(pl.when("ours").then(pl.col("felt").sum().over("stretch"))).to_series()
