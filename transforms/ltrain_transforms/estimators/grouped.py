"""Outcome estimators that compare a return with the others of its group.

Where all returns of a group are equal, the advantage is exactly 0: rounding is not magnified.
"""

import polars as pl

from ltrain_transforms.estimators.frames import EPSILON, SAME, OutcomeSettings

R = pl.col("reward")
DIFFER = R.max() - R.min() > SAME


def grpo(members: pl.DataFrame, settings: OutcomeSettings) -> pl.Series:
    """A_i = (R_i - mean) / (std + 1e-6) over the group (DeepSeekMath, arXiv 2402.03300, 4.1).

    The usual choice: every task weighs alike, however far its returns lie apart.
    """
    return within(members, (R - R.mean()) / (R.std() + EPSILON))


def dr_grpo(members: pl.DataFrame, settings: OutcomeSettings) -> pl.Series:
    """A_i = R_i - mean over the group (Dr. GRPO, arXiv 2503.20783).

    Without the deviation, which favours tasks that are nearly always solved or never. The other
    half of Dr. GRPO, no division by a row's length, is `train.loss_weighting = "token"`.
    """
    return within(members, R - R.mean())


def rloo(members: pl.DataFrame, settings: OutcomeSettings) -> pl.Series:
    """A_i = R_i - mean of the other returns of the group (RLOO, arXiv 2402.14740).

    Unbiased: the baseline does not contain what it is taken from.
    """
    return within(members, R - (R.sum() - R) / (pl.len() - 1))


def opo(members: pl.DataFrame, settings: OutcomeSettings) -> pl.Series:
    """A_i = R_i - sum(l R) / sum(l) over the group, l sampled tokens (OPO, arXiv 2505.23585).

    The baseline of least variance where the gradient's norm grows with length.
    """
    length = pl.col("tokens")
    weighed = (length * R).sum() / length.sum()
    return within(members, R - pl.when(length.sum() > 0).then(weighed).otherwise(R.mean()))


def max_rl(members: pl.DataFrame, settings: OutcomeSettings) -> pl.Series:
    """A_i = (R_i - mean) / mean over the group (MaxRL, arXiv 2602.02710).

    For returns from 0 up: maximises the likelihood of success, so that hard tasks weigh about 1/p.
    A group whose mean is not above 0 has advantage 0.
    """
    solved = R.mean() > SAME
    return within(members, pl.when(solved).then((R - R.mean()) / R.mean()).otherwise(0.0))


def grpo_passk(members: pl.DataFrame, settings: OutcomeSettings) -> pl.Series:
    """A of the group's best = (R_1 - R_2) / (std + 1e-6), of others 0 (arXiv 2503.19595).

    For pass@k: only the best counts, by how far it leads. Where two share the lead both have 0.
    """
    lead = R.max() - R.top_k(2).min()
    best = pl.when(R.max() == R).then(lead / (R.std() + EPSILON)).otherwise(0.0)
    return within(members, best)


def lightning(members: pl.DataFrame, settings: OutcomeSettings) -> pl.Series:
    """A_i = (R_i - mean) / (std + 1e-6) over a task's transitions (arXiv 2508.03680, fig. 3c).

    Agent Lightning's own: every transition has its execution's return, and the statistics are over
    transitions, so that an execution with more calls weighs more in mean and deviation.
    """
    calls = pl.col("calls").cast(pl.Float64)
    mean = (calls * R).sum() / calls.sum()
    square = (calls * (R - mean).pow(2)).sum()
    deviation = (square / (calls.sum() - 1)).sqrt()
    spread = (calls.sum() > 1) & (square > SAME**2)
    return within(members, pl.when(spread).then((R - mean) / (deviation + EPSILON)).otherwise(0.0))


def within(members: pl.DataFrame, advantage: pl.Expr) -> pl.Series:
    """Read `advantage` in each group; 0 where its returns are equal, null where one is alone."""
    given = pl.when(DIFFER).then(advantage).otherwise(0.0).over("group")
    return members.select(advantage=pl.when(pl.col("peers") > 1).then(given)).to_series()
