"""Step estimators: a trained call against calls that stood before the same choice.

Peers are in one group and in one place (policy, agent and node).
"""

from collections.abc import Iterator

import polars as pl

from ltrain_transforms.estimators.frames import EPSILON, SAME, StepSettings


def gigpo(steps: pl.DataFrame, settings: StepSettings) -> pl.Series:
    """A_t = (G_t - mean) / F over the group's steps in one state (GiGPO, arXiv 2505.10978).

    G_t is the discounted return, the outcome at its end; F is 1, or the deviation
    with `scale = "std"`. A state that nobody else reached gives 0, which leaves the outcome alone.
    """
    return _compared(steps, "returns", ["anchor"], settings)


def hgpo(steps: pl.DataFrame, settings: StepSettings) -> pl.Series:
    """A_t = sum_k w_k A_t,k over histories of k = 0..K states (HGPO, arXiv 2602.22817).

    A_t,k compares steps whose last k states are equal too, so that what led here is part of the
    state; w_k is proportional to (k + 1)^power among those k at which the step has a peer. K is
    `history`.
    """
    frame = steps.with_columns(weighed=pl.lit(0.0), weights=pl.lit(0.0))
    for k, level in enumerate(_histories(steps, settings.history)):
        at = frame.with_columns(level=level)
        met = pl.col("level").is_not_null() & (pl.len().over("level") > 1)
        weight = pl.when(met).then(float(k + 1) ** settings.power).otherwise(0.0)
        frame = at.with_columns(
            weights=pl.col("weights") + weight,
            weighed=pl.col("weighed") + weight * _compared(at, "returns", ["level"], settings),
        )
    fused = pl.col("weighed") / pl.col("weights")
    return frame.select(
        advantage=pl.when(pl.col("weights") > 0).then(fused).otherwise(0.0)
    ).to_series()


def turn_level(steps: pl.DataFrame, settings: StepSettings) -> pl.Series:
    """A_t = (r_t - mean) / F over the group's k-th turns of one agent (MT-GRPO, arXiv 2505.11821).

    r_t is what the turn itself was given, not what followed; the outcome's advantage is
    added to it. F as in gigpo; the paper divides (`scale = "std"`).
    """
    return _compared(steps, "reward", ["group", "place", "kth"], settings)


def _compared(
    steps: pl.DataFrame, column: str, peers: list[str], settings: StepSettings
) -> pl.Series:
    """Give the difference from the peers' mean; 0 where there is none, or all are equal."""
    value = pl.col(column)
    # each statistic over its peers by itself: one expression over them all is twice as slow
    centred = value - value.mean().over(peers)
    if settings.scale == "std":
        centred = centred / (value.std().over(peers) + EPSILON)
    differ = value.max().over(peers) - value.min().over(peers) > SAME
    known = pl.all_horizontal(pl.col(name).is_not_null() for name in peers)
    return steps.select(advantage=pl.when(known & differ).then(centred).otherwise(0.0)).to_series()


def _histories(steps: pl.DataFrame, history: int) -> Iterator[pl.Series]:
    """Number, for k = 0..history, the steps whose last k + 1 anchors are equal; null if unknown."""
    anchor = pl.col("anchor").cast(pl.UInt64)
    frame = steps.select("execution", "policy", anchor=anchor, level=anchor)
    yield frame["level"]
    for k in range(1, history + 1):
        before = pl.col("anchor").shift(k).over("execution", "policy")
        pair = pl.col("level") * (pl.col("anchor").max() + 1) + before
        frame = frame.with_columns(level=pair.rank("dense").cast(pl.UInt64))
        yield frame["level"]
