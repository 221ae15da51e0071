"""Which part of an execution a call belongs to: what the outcome advantage is one value of.

Among whole executions there is one part. Among agents, each agent's calls are one. Under parents,
each invocation of an agent is one: a sub-agent is compared with its siblings, an agent that has
none with the same agent's invocations in the group.
"""

import polars as pl

from ltrain_transforms.recipe import Peers

DEPTH = 20
"""Doublings of the walk to an enclosing agent: 2^20 levels. A cycle of parents has no agent."""


def with_parts(calls: pl.DataFrame, peers: Peers) -> pl.DataFrame:
    """Add `part`, its `sort`, which is comparable across executions, and `under`.

    `under` is the agent call around the part, null where there is none.
    """
    nothing = pl.lit(None, pl.String)
    if peers is Peers.GROUP:
        return calls.with_columns(part=nothing, sort=nothing, under=nothing)
    agent = pl.coalesce("agent", "node", pl.lit(""))
    if peers is Peers.AGENT:
        return calls.with_columns(part=agent, sort=agent, under=nothing)
    return _invocations(calls.with_columns(sort=agent).with_row_index("row")).drop("row")


def _invocations(rows: pl.DataFrame) -> pl.DataFrame:
    parents = _parents(rows)
    own = _enclosing(rows, parents)
    around = own.gather(parents.gather(own))  # the agent around the agent's own call
    above = rows["sort"].gather(around).fill_null("")
    return rows.with_columns(
        part=pl.coalesce(rows["call_id"].gather(own), "sort"),
        sort=pl.concat_str(above, "sort", separator="\x1f"),
        under=rows["call_id"].gather(around),
    )


def _parents(rows: pl.DataFrame) -> pl.Series:
    """Give the row of each call's parent, or null."""
    where = rows.select("execution_id", parent_id="call_id", above="row")
    joined = rows.select("execution_id", "parent_id").join(
        where, ["execution_id", "parent_id"], "left", maintain_order="left"
    )
    return joined["above"]


def _enclosing(rows: pl.DataFrame, parents: pl.Series) -> pl.Series:
    """Give the row of the nearest agent call around each call, itself included, or null."""
    agent = rows["kind"] == "agent"
    up = pl.select(pl.when(agent).then(rows["row"]).otherwise(parents)).to_series()
    for _ in range(DEPTH):
        further = up.gather(up)
        if further.equals(up, null_equal=True):
            break
        up = further
    return pl.select(pl.when(agent.gather(up)).then(up)).to_series()
