"""Outcome estimators that compare a return with the other returns of its group.

Where all returns of a group are equal, the advantage is exactly 0, so that rounding errors are not
magnified.
"""

import polars as pl

from ltrain_transforms.estimators.frames import EPSILON, SAME, OutcomeSettings

R = pl.col("reward")
DIFFER = R.max() - R.min() > SAME


def grpo(members: pl.DataFrame, settings: OutcomeSettings) -> pl.Series:
    """A_i = (R_i - mean) / (std + 1e-6) over the group (DeepSeekMath, arXiv 2402.03300, 4.1).

    The usual choice: every task has the same weight, whatever the spread of its returns.
    """
    return compare_within_group(members, (R - R.mean()) / (R.std() + EPSILON))


def dr_grpo(members: pl.DataFrame, settings: OutcomeSettings) -> pl.Series:
    """A_i = R_i - mean over the group (Dr. GRPO, arXiv 2503.20783).

    It does not divide by the deviation, which would favour tasks that are almost always or almost
    never solved. The other half of Dr. GRPO, no division by a row's length, is
    `train.loss_weighting = "token"`.
    """
    return compare_within_group(members, R - R.mean())


def rloo(members: pl.DataFrame, settings: OutcomeSettings) -> pl.Series:
    """A_i = R_i - mean of the other returns of the group (RLOO, arXiv 2402.14740).

    Unbiased: the baseline does not contain the return of the execution itself.
    """
    return compare_within_group(members, R - (R.sum() - R) / (pl.len() - 1))


def opo(members: pl.DataFrame, settings: OutcomeSettings) -> pl.Series:
    """A_i = R_i - sum(l R) / sum(l) over the group, l sampled tokens (OPO, arXiv 2505.23585).

    The baseline of least variance where the gradient's norm grows with length.
    """
    length = pl.col("tokens")
    weighted = (length * R).sum() / length.sum()
    baseline = pl.when(length.sum() > 0).then(weighted).otherwise(R.mean())
    return compare_within_group(members, R - baseline)


def max_rl(members: pl.DataFrame, settings: OutcomeSettings) -> pl.Series:
    """A_i = (R_i - mean) / mean over the group (MaxRL, arXiv 2602.02710).

    For returns of 0 and above. It maximises the likelihood of success: a task with success rate p
    weighs about 1/p. A group whose mean is not above 0 has advantage 0.
    """
    solved = R.mean() > SAME
    return compare_within_group(
        members, pl.when(solved).then((R - R.mean()) / R.mean()).otherwise(0.0)
    )


def grpo_passk(members: pl.DataFrame, settings: OutcomeSettings) -> pl.Series:
    """A of the group's best = (R_1 - R_2) / (std + 1e-6), of others 0 (arXiv 2503.19595).

    For pass@k: only the best counts, by its distance from the second. Where two are best, both have
    advantage 0.
    """
    lead = R.max() - R.top_k(2).min()
    best = pl.when(R.max() == R).then(lead / (R.std() + EPSILON)).otherwise(0.0)
    return compare_within_group(members, best)


def lightning(members: pl.DataFrame, settings: OutcomeSettings) -> pl.Series:
    """A_i = (R_i - mean) / (std + 1e-6) over a task's transitions (arXiv 2508.03680, fig. 3c).

    The estimator of Agent Lightning: every transition has its execution's return, and mean and
    deviation are over transitions, so that an execution with more calls weighs more in them.
    """
    calls = pl.col("calls").cast(pl.Float64)
    mean = (calls * R).sum() / calls.sum()
    square = (calls * (R - mean).pow(2)).sum()
    deviation = (square / (calls.sum() - 1)).sqrt()
    spread = (calls.sum() > 1) & (square > SAME**2)
    return compare_within_group(
        members, pl.when(spread).then((R - mean) / (deviation + EPSILON)).otherwise(0.0)
    )


def compare_within_group(members: pl.DataFrame, advantage: pl.Expr) -> pl.Series:
    """Evaluate `advantage` in each group; 0 where its returns are equal, null without peers."""
    by_group = pl.when(DIFFER).then(advantage).otherwise(0.0).over("group")
    return members.select(advantage=pl.when(pl.col("peers") > 1).then(by_group)).to_series()
