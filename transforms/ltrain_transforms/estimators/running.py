"""Outcome estimators for traffic without groups: a running baseline, or the trainer's critic.

Each track (a task, else its domain; with `peers = "agent"` each agent of it) has a running
baseline. It is updated in the order in which executions ended, and contains only those that ended
before.
"""

import polars as pl

from ltrain_transforms.estimators.frames import OutcomeSettings

R = pl.col("reward")


def running(members: pl.DataFrame, settings: OutcomeSettings) -> pl.Series:
    """A_i = R_i - mean of the track's earlier returns (Williams 1992, REINFORCE with a baseline).

    The first of a track has nothing to compare with and is dropped as `alone`.
    """
    earlier = R.cum_sum() - R
    count = pl.int_range(pl.len())
    advantage = pl.when(count > 0).then(R - earlier / count)
    return _in_order(members, advantage)


def rae(members: pl.DataFrame, settings: OutcomeSettings) -> pl.Series:
    """A_i = R_i - b, then b := d b + (1 - d) R_i, for each agent (SPIRAL, arXiv 2506.24119).

    Role-conditioned: for self-play and agents whose returns differ by role. b begins at 0 and d is
    `decay`. SPIRAL updates b before subtracting it, which multiplies every advantage by d.
    """
    decay = settings.decay
    count = pl.int_range(pl.len()).cast(pl.Float64)
    from_first = R.ewm_mean(alpha=1 - decay, adjust=False)
    # ewm_mean begins at the first return instead of 0
    from_zero = from_first - pl.lit(decay).pow(count + 1) * R.first()
    return _in_order(members, R - from_zero.shift(1, fill_value=0.0))


def _in_order(members: pl.DataFrame, advantage: pl.Expr) -> pl.Series:
    by_end = members.with_row_index("row").sort("end", "row")
    advantages = by_end.select("row", advantage=advantage.over("track"))
    return advantages.sort("row")["advantage"]


def gae(members: pl.DataFrame, settings: OutcomeSettings) -> pl.Series:
    """A_i = 0; `token_rewards` carry call rewards and the outcome (GAE, arXiv 1506.02438).

    The trainer's critic computes delta = r + gamma V' - V and its discounted sum from them.
    """
    return pl.zeros(members.height, eager=True, dtype=pl.Float64).alias("advantage")
