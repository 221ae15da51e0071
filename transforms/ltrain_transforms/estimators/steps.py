"""Step estimators: a trained call compared with calls in the same situation.

Peers share the group and the place (policy, agent and node).
"""

from collections.abc import Iterator

import polars as pl

from ltrain_transforms.estimators.frames import EPSILON, SAME, StepSettings


def gigpo(steps: pl.DataFrame, settings: StepSettings) -> pl.Series:
    """A_t = (G_t - mean) / F over the group's steps in one state (GiGPO, arXiv 2505.10978).

    G_t is the discounted return with the outcome at its end; F is 1, or the standard deviation with
    `scale = "std"`. A state that only one step reached has advantage 0.
    """
    return _compare(steps["returns"], steps["anchor"], settings)["advantage"]


def hgpo(steps: pl.DataFrame, settings: StepSettings) -> pl.Series:
    """A_t = sum_k w_k A_t,k over histories of k = 0..K states (HGPO, arXiv 2602.22817).

    A_t,k compares steps whose last k states are equal too, so that the path to a state is part of
    it. w_k is proportional to (k + 1)^power over those k at which the step has a peer. K is
    `history`.
    """
    total = pl.zeros(steps.height, dtype=pl.Float64, eager=True)
    weights = pl.zeros(steps.height, dtype=pl.Float64, eager=True)
    for k, level in enumerate(_histories(steps, settings.history)):
        compared = _compare(steps["returns"], level, settings)
        weight = (compared["peers"] > 1).cast(pl.Float64) * float(k + 1) ** settings.power
        total, weights = total + weight * compared["advantage"], weights + weight
    mean = pl.when(weights > 0).then(total / weights).otherwise(0.0)
    return pl.select(advantage=mean).to_series()


def turn_level(steps: pl.DataFrame, settings: StepSettings) -> pl.Series:
    """A_t = (r_t - mean) / F over the group's k-th turns of one agent (MT-GRPO, arXiv 2505.11821).

    r_t is the reward of the turn itself, not of later ones; the outcome advantage is added to it. F
    as in gigpo; the paper divides (`scale = "std"`).
    """
    names = ("group", "place", "turn_index")
    group, place, turn = (pl.col(name).cast(pl.UInt64) for name in names)
    peers = (group * (place.max() + 1) + place) * (turn.max() + 1) + turn
    return _compare(steps["reward"], steps.select(peers).to_series(), settings)["advantage"]


def _compare(value: pl.Series, peers: pl.Series, settings: StepSettings) -> pl.DataFrame:
    """Return `advantage`, the difference from the peers' mean, and `peers`, their number.

    The advantage is 0 where a step has no peer, all peers are equal, or `peers` is null.

    Args:
        peers: the key that peers share.
    """
    v = pl.col("value")
    # one column for each statistic: a single expression of them all takes twice as long
    statistics = pl.DataFrame({"value": value, "key": peers}).select(
        "key",
        centred=v - v.mean().over("key"),
        std=v.std().over("key"),
        spread=v.max().over("key") - v.min().over("key"),
        peers=pl.when(pl.col("key").is_not_null()).then(pl.len().over("key")).otherwise(0),
    )
    scale = pl.col("std") + EPSILON if settings.scale == "std" else pl.lit(1.0)
    differ = (pl.col("peers") > 1) & (pl.col("spread") > SAME)
    return statistics.select(
        "peers", advantage=pl.when(differ).then(pl.col("centred") / scale).otherwise(0.0)
    )


def _histories(steps: pl.DataFrame, history: int) -> Iterator[pl.Series]:
    """Yield for k = 0..history a key shared by steps with k + 1 equal last anchors, or null."""
    anchor = pl.col("anchor").cast(pl.UInt64)
    frame = steps.select("execution", "policy", anchor=anchor, level=anchor)
    yield frame["level"]
    for k in range(1, history + 1):
        before = pl.col("anchor").shift(k).over("execution", "policy")
        pair = pl.col("level") * (pl.col("anchor").max() + 1) + before
        frame = frame.with_columns(level=pair.rank("dense").cast(pl.UInt64))
        yield frame["level"]
