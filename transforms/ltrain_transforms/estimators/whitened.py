"""Outcome estimators whitened over the batch: mean 0 and standard deviation 1 over sampled tokens.

Every sampled token has its execution's value, so that a longer execution weighs more, as in verl's
`masked_whiten`. Where a group is the baseline, executions that are alone in theirs are left out of
the statistics.
"""

import polars as pl

from ltrain_transforms.estimators.frames import COMPONENT, EPSILON, SAME, OutcomeSettings

R = pl.col("reward")
IN_GROUP = pl.col("peers") > 1
IN_BATCH = pl.len() > 1

WHITENING = 1e-8
"""Added to the variance, as in verl's `masked_whiten`."""


def reinforce_pp(members: pl.DataFrame, settings: OutcomeSettings) -> pl.Series:
    """A_i = (R_i - mean) / std over the batch's tokens (REINFORCE++, arXiv 2501.03262).

    For many tasks with few rollouts each, down to one, as in production traffic: the batch is the
    baseline, and the paper defines it for k >= 1 rollouts a task. No discount within a rollout.
    """
    return _whiten(members, R, IN_BATCH)


def reinforce_pp_baseline(members: pl.DataFrame, settings: OutcomeSettings) -> pl.Series:
    """A_i = (R_i - group mean) whitened over the batch's tokens (arXiv 2501.03262).

    Each task is compared with its own mean, and all tasks are scaled together.
    """
    return _whiten(members, (R - R.mean()).over("group"), IN_GROUP)


def gdpo(members: pl.DataFrame, settings: OutcomeSettings) -> pl.Series:
    """A_i = sum_k w_k (r_k,i - mean_k) / (std_k + 1e-6), whitened (GDPO, arXiv 2601.05242).

    Each reward of the execution as a whole is compared within its group; their weighted sum is
    whitened. So a reward with a large variance does not outweigh the others.
    """
    names = [name for name in members.columns if name.startswith(COMPONENT)]
    parts = [settings.weights.get(name, 1.0) * _standardise(pl.col(name)) for name in names]
    return _whiten(members, pl.sum_horizontal(parts) if parts else pl.lit(0.0), IN_GROUP)


def _standardise(component: pl.Expr) -> pl.Expr:
    differ = component.max() - component.min() > SAME
    scaled = (component - component.mean()) / (component.std() + EPSILON)
    return pl.when(differ).then(scaled).otherwise(0.0).over("group")


def _whiten(members: pl.DataFrame, value: pl.Expr, compared: pl.Expr) -> pl.Series:
    """Whiten `value` over tokens, with Bessel's correction; null where a member is not compared."""
    frame = members.select(value=value, tokens="tokens", compared=compared)
    tokens = pl.when("compared").then("tokens").otherwise(0.0)
    frame = frame.with_columns(tokens=tokens)
    total, (x, n) = pl.col("tokens").sum(), (pl.col("value"), pl.col("tokens"))
    centred = frame.with_columns(value=x - (x * n).sum() / total)
    variance = (x * x * n).sum() / (total - 1)
    white = x * (variance + WHITENING).pow(-0.5)
    flat = (total <= 1) | (variance <= SAME**2)
    return centred.select(
        advantage=pl.when("compared").then(pl.when(flat).then(0.0).otherwise(white))
    ).to_series()
