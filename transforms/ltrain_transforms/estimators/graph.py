"""The step estimator over the graph of states that a group's executions passed through."""

import polars as pl

from ltrain_transforms.estimators.frames import SAME, StepSettings

SWEEPS = 200
"""Most Bellman sweeps; values of a graph without cycles are exact after its longest path."""


def graph(steps: pl.DataFrame, settings: StepSettings) -> pl.Series:
    """A_t = r_t + gamma V(s_t+1) - V(s_t), V by Bellman sweeps over the group's state graph.

    Equal states of a group are one node, V its mean of r + gamma V' over every visit, the outcome
    the last edge's reward (SALT, arXiv 2510.20022; GRAFT, arXiv 2609.28963). Unlike gigpo's
    returns, V' averages over what others did after the same state. A state visited once gives 0.
    """
    edges = _edges(steps)
    values = pl.zeros(edges["node"].n_unique(), dtype=pl.Float64, eager=True)
    for _ in range(SWEEPS):
        backed_up = edges.select("node", target=_target(edges, values, settings.gamma))
        swept = backed_up.group_by("node", maintain_order=True).agg(pl.col("target").mean())
        moved = (swept["target"] - values).abs().max()
        values = swept["target"]
        if moved is None or float(moved) <= SAME:  # type: ignore[arg-type]
            break
    return _advantages(edges, values, settings.gamma)


def _edges(steps: pl.DataFrame) -> pl.DataFrame:
    """Give each step its node, numbered from 0, and the node after it; sorted by node.

    A step whose state was not seen is a node of its own.
    """
    frame = steps.with_row_index("row")
    shared = pl.col("anchor").max().fill_null(0).cast(pl.UInt64)
    own = shared + 1 + pl.col("row")
    node = pl.coalesce(pl.col("anchor").cast(pl.UInt64), own).rank("dense") - 1
    frame = frame.select(
        "row", "execution", "policy", given=pl.col("reward") + pl.col("outcome"), node=node
    )
    after = pl.col("node").shift(-1).over("execution", "policy")
    return frame.with_columns(after=after).sort("node", "row").set_sorted("node")


def _target(edges: pl.DataFrame, values: pl.Series, gamma: float) -> pl.Series:
    following = values.gather(edges["after"].fill_null(0))
    ahead = pl.select(pl.when(edges["after"].is_not_null()).then(following).otherwise(0.0))
    return edges["given"] + gamma * ahead.to_series()


def _advantages(edges: pl.DataFrame, values: pl.Series, gamma: float) -> pl.Series:
    gain = _target(edges, values, gamma) - values.gather(edges["node"])
    felt = pl.when(gain.abs() > SAME).then(gain).otherwise(0.0)
    return edges.select("row", advantage=felt).sort("row")["advantage"]
