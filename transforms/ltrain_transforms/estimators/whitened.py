"""Outcome estimators that are whitened over the batch: mean 0, deviation 1 over sampled tokens.

Every sampled token has its execution's value, so that a longer execution weighs more, as in verl's
`masked_whiten`. Executions that are alone in their group do not count.
"""

import polars as pl

from ltrain_transforms.estimators.frames import COMPONENT, EPSILON, SAME, OutcomeSettings

R = pl.col("reward")
COMPARED = pl.col("peers") > 1

WHITENING = 1e-8
"""Added to the variance, as in verl's `masked_whiten`."""


def reinforce_pp(members: pl.DataFrame, settings: OutcomeSettings) -> pl.Series:
    """A_i = (R_i - mean) / std over the batch's tokens (REINFORCE++, arXiv 2501.03262).

    For many tasks with few rollouts each: the batch is the baseline. Undiscounted within a rollout.
    """
    return _whitened(members, R)


def reinforce_pp_baseline(members: pl.DataFrame, settings: OutcomeSettings) -> pl.Series:
    """A_i = (R_i - group mean) whitened over the batch's tokens (arXiv 2501.03262).

    Tasks of different difficulty are compared with themselves, and scaled together.
    """
    return _whitened(members, (R - R.mean()).over("group"))


def gdpo(members: pl.DataFrame, settings: OutcomeSettings) -> pl.Series:
    """A_i = sum_k w_k (r_k,i - mean_k) / (std_k + 1e-6), whitened (GDPO, arXiv 2601.05242).

    Each reward of the whole execution is compared in its group by itself, then they are summed with
    their weights: one that varies much does not drown the others, as it would in a sum.
    """
    names = [name for name in members.columns if name.startswith(COMPONENT)]
    parts = [settings.weights.get(name, 1.0) * _compared(pl.col(name)) for name in names]
    return _whitened(members, pl.sum_horizontal(parts) if parts else pl.lit(0.0))


def _compared(component: pl.Expr) -> pl.Expr:
    differ = component.max() - component.min() > SAME
    scaled = (component - component.mean()) / (component.std() + EPSILON)
    return pl.when(differ).then(scaled).otherwise(0.0).over("group")


def _whitened(members: pl.DataFrame, value: pl.Expr) -> pl.Series:
    """Whiten `value` over tokens, with Bessel's correction; null where a member is alone."""
    tokens = pl.when(COMPARED).then("tokens").otherwise(0.0)
    frame = members.select(peers="peers", value=value, tokens=tokens)
    total, (x, n) = pl.col("tokens").sum(), (pl.col("value"), pl.col("tokens"))
    centred = frame.with_columns(value=x - (x * n).sum() / total)
    variance = (x * x * n).sum() / (total - 1)
    white = x * (variance + WHITENING).pow(-0.5)
    flat = (total <= 1) | (variance <= SAME**2)
    return centred.select(
        advantage=pl.when(COMPARED).then(pl.when(flat).then(0.0).otherwise(white))
    ).to_series()
