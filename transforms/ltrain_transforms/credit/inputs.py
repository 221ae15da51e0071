"""The columns of calls that credit reads: no text and no tokens, so that a wave fits in memory.

Each row depends on the calls of its own execution alone.
"""

import polars as pl

from ltrain_transforms.recipe import Peers, Recipe
from ltrain_transforms.rendering import sampled_version
from ltrain_transforms.source import DEFAULT_SCOPE, CreditScope, trained_policy
from ltrain_transforms.tables import taken_choice

CREDIT_INPUTS = pl.Schema(
    {
        "execution_id": pl.String(),
        "call_id": pl.String(),
        "seq": pl.Int32(),
        "start": pl.Int64(),
        "end": pl.Int64(),
        "kind": pl.String(),
        "agent": pl.String(),
        "node": pl.String(),
        "turn_index": pl.Int32(),  # of its kind, agent and node, in causal order
        "policy_version": pl.Int32(),
        "policy": pl.String(),  # the policy that is trained on it; null: it is environment
        "sampled_tokens": pl.UInt32(),  # null without token ids and reported usage
        "state_digest": pl.String(),  # the state that step estimators compare within, or null
        "part": pl.String(),  # the part of its execution that gets one outcome advantage
        "part_role": pl.String(),  # what that part is, with the same value in other executions
        "parent_agent": pl.String(),  # the agent call around the part, or null
    }
)

MAX_TOKENS = (1 << 32) - 1
"""Largest count that the column holds; an agent may report any usage."""


def credit_inputs(
    recipe: Recipe,
    calls: pl.DataFrame,
    executions: pl.DataFrame,
    scope: CreditScope = DEFAULT_SCOPE,
) -> pl.DataFrame:
    """Return the `CREDIT_INPUTS` of `calls`.

    Args:
        calls: `CALLS`, with or without a column `state_digest`.
        executions: those of the calls; `policy.modes` selects by their `mode`.
    """
    modes = executions.select("execution_id", "mode")
    state = pl.col("state_digest") if "state_digest" in calls.columns else pl.lit(None, pl.String)
    inputs = (
        calls.lazy()
        .join(modes.lazy(), "execution_id", "left", maintain_order="left")
        .with_columns(
            policy=trained_policy(recipe.policy, scope),
            sampled_tokens=_sampled_tokens(),
            state_digest=state,
        )
        .with_columns(policy_version=sampled_version(scope.served))
    )
    of_parts = ("part", "part_role", "parent_agent")
    names = [name for name in (*CREDIT_INPUTS, "parent_id") if name not in of_parts]
    parts = with_parts(inputs.select(names).collect(), recipe.credit.outcome.peers)
    return parts.select(pl.col(name).cast(dtype) for name, dtype in CREDIT_INPUTS.items())


def _sampled_tokens() -> pl.Expr:
    """Count the sampled tokens, or else take the reported usage."""
    sampled = taken_choice("response_token_ids").list.len()
    return pl.coalesce(sampled, pl.col("output_tokens").clip(0, MAX_TOKENS))


DOUBLINGS = 20
"""Doublings of the walk to an enclosing agent: 2^20 levels. A cycle of parents has no agent."""


def with_parts(calls: pl.DataFrame, peers: Peers) -> pl.DataFrame:
    """Add `part`, `part_role` and `parent_agent`; each part gets one outcome advantage.

    With `peers = "group"` an execution is one part. With "agent", the calls of each agent are a
    part. With "parent", each invocation of an agent is a part: a sub-agent is compared with its
    siblings, and an agent without siblings with the invocations of the same agent in the group.
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
