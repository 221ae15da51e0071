"""Calls -> what credit reads of them: no text and no tokens, so that a whole wave fits in memory.

It is a map over executions: what is said of a call depends on its own execution alone.
"""

import polars as pl

from ltrain_transforms.credit.parts import with_parts
from ltrain_transforms.recipe import Recipe
from ltrain_transforms.selection import trained_by

NARROW = pl.Schema(
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
        "trained_by": pl.String(),  # the policy that is trained on it, or null: environment
        "sampled_tokens": pl.UInt32(),  # null where neither ids nor usage say
        "state_digest": pl.String(),  # the anchor of step estimators, or null
        "part": pl.String(),  # the part of its execution that the outcome is compared for
        "sort": pl.String(),  # what kind of part that is, the same in other executions
        "under": pl.String(),  # the agent call around the part, or null
    }
)

MOST = (1 << 32) - 1
"""Most tokens that the column holds; usage is whatever an agent reports."""


def narrow(recipe: Recipe, calls: pl.DataFrame, executions: pl.DataFrame) -> pl.DataFrame:
    """Return the `NARROW` columns of `calls`, which may have a `state_digest` more.

    Args:
        executions: those of the calls; their `mode` is what `policy.modes` is held against.
    """
    modes = executions.select("execution_id", "mode")
    anchor = pl.col("state_digest") if "state_digest" in calls.columns else pl.lit(None, pl.String)
    told = (
        calls.lazy()
        .join(modes.lazy(), "execution_id", "left", maintain_order="left")
        .with_columns(
            trained_by=trained_by(recipe.policy), sampled_tokens=_length(), state_digest=anchor
        )
    )
    kept = [name for name in (*NARROW, "parent_id") if name not in ("part", "sort", "under")]
    placed = with_parts(told.select(kept).collect(), recipe.credit.outcome.peers)
    return placed.select(pl.col(name).cast(dtype) for name, dtype in NARROW.items())


def _length() -> pl.Expr:
    """Count the sampled tokens, else take the usage that was reported."""
    sampled = pl.col("response_token_ids").list.first().list.len()
    return pl.coalesce(sampled, pl.col("output_tokens").clip(0, MOST))
