"""All calls of the compared executions in call order, with rewards and numbers for names."""

import polars as pl

from ltrain_transforms.credit.returns import immediate
from ltrain_transforms.recipe import Peers, Recipe

ENCLOSING = ("agent", "node")
"""Kinds of calls that others lie in."""

DROPPED = ("sort", "under")
"""Columns of `NARROW` that only the outcome reads."""


def in_order(
    recipe: Recipe, compared: pl.DataFrame, calls: pl.DataFrame, rewards: pl.DataFrame
) -> pl.DataFrame:
    """Put `calls` (`NARROW`) in order, with more columns.

    Numbers: `execution`, `group`, `scene` (agent and node). Counts: `turn` (LLM calls so far, of
    all executions), `turn_index` (those of this scene before it). Then what the call was given,
    `reward`; what is `felt` there, in causal order; its execution's outcome; `immediate`, where
    something reads it.
    """
    executions = _numbered(compared)
    number = executions.select("execution_id", "execution")
    given = (
        rewards.filter(pl.col("call_id").is_not_null())
        .join(number, "execution_id")
        .group_by("execution", "call_id", maintain_order=True)
        .agg(reward=pl.col("value").sum())
    )
    scene = code("agent") * (code("node").max() + 1) + code("node")
    joined = (
        calls.drop(DROPPED)
        .join(executions.drop("parts"), "execution_id")
        .join(given, ["execution", "call_id"], "left")
        .with_columns(pl.col("reward").fill_null(0.0), scene=scene)
        .sort("execution", "seq")
    )
    is_llm = pl.col("kind") == "llm"
    told = joined.with_columns(
        turn=is_llm.cum_sum(),
        # in causal order: calls in parallel share it
        turn_index=pl.coalesce(
            "turn_index", is_llm.cum_sum().over("execution", "scene").cast(pl.Int32) - 1
        ),
    )
    told = _with_felt(_with_parts(told, executions, recipe.credit.outcome.peers))
    if recipe.credit.step is None and not recipe.credit.uses_critic:
        return told
    each = (immediate(told, policy.name) for policy in recipe.policy)
    return told.with_columns(immediate=pl.coalesce(*each))


def _with_felt(calls: pl.DataFrame) -> pl.DataFrame:
    """Add `felt`: the rewards by call, but what encloses others is judged when it ends.

    The reward of an agent's or a node's own call is felt at the last call that began inside it.
    """
    encloses = pl.col("kind").is_in(ENCLOSING) & (pl.col("reward") != 0)
    outer = calls.filter(encloses).select("execution", "end", "reward", own="seq").sort("end")
    if outer.is_empty():
        return calls.with_columns(felt="reward")
    began = calls.select("execution", "start", "seq").sort("start", "seq")
    moved = outer.join_asof(
        began,
        left_on="end",
        right_on="start",
        by="execution",
        allow_exact_matches=False,
        check_sortedness=False,  # it cannot be checked within executions
    ).with_columns(seq=pl.max_horizontal("seq", "own"))
    later = moved.sort("execution", "own").group_by("execution", "seq", maintain_order=True)
    joined = calls.join(
        later.agg(later=pl.col("reward").sum()),
        ["execution", "seq"],
        "left",
        maintain_order="left",
    )
    here = pl.when(encloses).then(0.0).otherwise("reward")
    return joined.with_columns(felt=here + pl.col("later").fill_null(0.0)).drop("later")


def code(name: str) -> pl.Expr:
    """Number the values of a text column from 1, without gaps; null is as the empty text."""
    # a category's own number counts all that this process ever saw, so products would run over
    seen = pl.col(name).fill_null("").cast(pl.Categorical).to_physical()
    return seen.rank("dense").cast(pl.UInt64)


def _numbered(compared: pl.DataFrame) -> pl.DataFrame:
    told = compared.filter("sound").select(
        "execution_id",
        "group_id",
        "outcome_reward",
        "outcome_advantage",
        "parts",
        group=pl.coalesce("group_id", "execution_id").rank("dense"),
    )
    return told.with_row_index("execution")


def _with_parts(calls: pl.DataFrame, executions: pl.DataFrame, peers: Peers) -> pl.DataFrame:
    """Give a call its part's advantage; 0 where only other parts of the execution have peers."""
    if peers is Peers.GROUP:
        return calls
    parts = executions.select("execution", "parts").explode("parts").unnest("parts")
    joined = calls.join(parts, ["execution", "part"], "left", maintain_order="left")
    own = pl.col("part_advantage").fill_null(0.0)
    return joined.with_columns(
        outcome_advantage=pl.when(pl.col("outcome_advantage").is_not_null()).then(own)
    )
