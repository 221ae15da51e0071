"""The parts of an execution; each gets one outcome advantage.

With `peers = "group"` an execution is one part. With "agent", the calls of each agent are a part.
With "parent", each invocation of an agent is a part: a sub-agent is compared with its siblings, and
an agent without siblings with the invocations of the same agent in the group.
"""

import polars as pl

from ltrain_transforms.recipe import Peers

DOUBLINGS = 20
"""Doublings of the walk to an enclosing agent: 2^20 levels. A cycle of parents has no agent."""


def with_parts(calls: pl.DataFrame, peers: Peers) -> pl.DataFrame:
    """Add `part`, `part_role` and `parent_agent`.

    `part_role` is the agent, or the agent and its parent, and equal across executions.
    `parent_agent` is the agent call around the part, null where there is none.
    """
    nothing = pl.lit(None, pl.String)
    if peers is Peers.GROUP:
        return calls.with_columns(part=nothing, part_role=nothing, parent_agent=nothing)
    agent = pl.coalesce("agent", "node", pl.lit(""))
    if peers is Peers.AGENT:
        return calls.with_columns(part=agent, part_role=agent, parent_agent=nothing)
    return _invocations(calls.with_columns(part_role=agent).with_row_index("row")).drop("row")


def _invocations(rows: pl.DataFrame) -> pl.DataFrame:
    parents = _parent_rows(rows)
    own = _agent_rows(rows, parents)
    around = own.gather(parents.gather(own))  # the agent around the agent's own call
    parent_role = rows["part_role"].gather(around).fill_null("")
    return rows.with_columns(
        part=pl.coalesce(rows["call_id"].gather(own), "part_role"),
        part_role=pl.concat_str(parent_role, "part_role", separator="\x1f"),
        parent_agent=rows["call_id"].gather(around),
    )


def _parent_rows(rows: pl.DataFrame) -> pl.Series:
    """Return the row of each call's parent, or null."""
    parents = rows.select("execution_id", parent_id="call_id", parent_row="row")
    joined = rows.select("execution_id", "parent_id").join(
        parents, ["execution_id", "parent_id"], "left", maintain_order="left"
    )
    return joined["parent_row"]


def _agent_rows(rows: pl.DataFrame, parents: pl.Series) -> pl.Series:
    """Return the row of the nearest agent call around each call, itself included, or null."""
    is_agent = rows["kind"] == "agent"
    ancestor = pl.select(pl.when(is_agent).then(rows["row"]).otherwise(parents)).to_series()
    for _ in range(DOUBLINGS):
        further = ancestor.gather(ancestor)
        if further.equals(ancestor, null_equal=True):
            break
        ancestor = further
    return pl.select(pl.when(is_agent.gather(ancestor)).then(ancestor)).to_series()
