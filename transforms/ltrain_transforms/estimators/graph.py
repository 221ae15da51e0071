"""The step estimator on the graph of states that a group's executions visited."""

import polars as pl

from ltrain_transforms.estimators.frames import SAME, StepSettings

MAX_SWEEPS = 200
"""Most Bellman sweeps; values of a graph without cycles are exact after its longest path."""


def graph(steps: pl.DataFrame, settings: StepSettings) -> pl.Series:
    """A_t = r_t + gamma V(s_t+1) - V(s_t), V by Bellman sweeps over the group's state graph.

    Equal states of a group are one node. V of a node is the mean of r + gamma V' over all visits;
    the outcome is the reward of the last edge (SALT, arXiv 2510.20022; GRAFT, arXiv 2609.28963).
    Unlike the returns of gigpo, V' averages over all continuations from the same state. A state
    visited once has advantage 0.
    """
    edges = _edges(steps)
    values = pl.zeros(edges["node"].n_unique(), dtype=pl.Float64, eager=True)
    for _ in range(MAX_SWEEPS):
        backed_up = edges.select("node", target=_target(edges, values, settings.gamma))
        swept = backed_up.group_by("node", maintain_order=True).agg(pl.col("target").mean())
        change = (swept["target"] - values).abs().max()
        values = swept["target"]
        if change is None or float(change) <= SAME:  # type: ignore[arg-type]
            break
    return _advantages(edges, values, settings.gamma)


def _edges(steps: pl.DataFrame) -> pl.DataFrame:
    """Return each step with its `node`, numbered from 0, and the next node; sorted by node.

    A step with an unknown state is a node of its own.
    """
    frame = steps.with_row_index("row")
    shared = pl.col("anchor").max().fill_null(0).cast(pl.UInt64)
    own = shared + 1 + pl.col("row")
    node = pl.coalesce(pl.col("anchor").cast(pl.UInt64), own).rank("dense") - 1
    frame = frame.select(
        "row", "execution", "policy", reward=pl.col("reward") + pl.col("outcome"), node=node
    )
    next_node = pl.col("node").shift(-1).over("execution", "policy")
    return frame.with_columns(next_node=next_node).sort("node", "row").set_sorted("node")


def _target(edges: pl.DataFrame, values: pl.Series, gamma: float) -> pl.Series:
    gathered = values.gather(edges["next_node"].fill_null(0))
    next_value = pl.select(pl.when(edges["next_node"].is_not_null()).then(gathered).otherwise(0.0))
    return edges["reward"] + gamma * next_value.to_series()


def _advantages(edges: pl.DataFrame, values: pl.Series, gamma: float) -> pl.Series:
    difference = _target(edges, values, gamma) - values.gather(edges["node"])
    advantage = pl.when(difference.abs() > SAME).then(difference).otherwise(0.0)
    return edges.select("row", advantage=advantage).sort("row")["advantage"]
