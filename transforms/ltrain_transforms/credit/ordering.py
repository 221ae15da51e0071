"""The calls of the compared executions in call order, with rewards and with numbers for names."""

import polars as pl

from ltrain_transforms.credit.returns import step_rewards
from ltrain_transforms.recipe import Peers, Recipe

ENCLOSING = ("agent", "node")
"""Kinds of calls that enclose other calls."""

OUTCOME_ONLY = ("part_role", "parent_agent")
"""Columns of `CREDIT_INPUTS` that only the outcome advantage reads."""


def order_calls(
    recipe: Recipe, executions: pl.DataFrame, calls: pl.DataFrame, rewards: pl.DataFrame
) -> pl.DataFrame:
    """Return `calls` in call order, with these columns more:

    - `execution`, `group`, `agent_node`: numbers of the execution, its group, and agent and node;
    - `turn`: LLM calls so far, over all executions;
    - `turn_index`: which turn of this agent and node in this execution it is, from 0;
    - `reward`: the sum of the call's contributions;
    - `effective_reward`: the reward that takes effect at this call. A reward on an agent or node
      call takes effect when that call ends, so the calls inside it share it;
    - `step_reward`: the effective rewards from a trained call to the next; only if it is read;
    - `outcome_reward` and `outcome_advantage` of its execution or part.

    Args:
        executions: those with `outcome_advantages`.
        calls: `CREDIT_INPUTS`.
    """
    numbered = _number_executions(executions)
    numbers = numbered.select("execution_id", "execution")
    call_rewards = (
        rewards.filter(pl.col("call_id").is_not_null())
        .join(numbers, "execution_id")
        .group_by("execution", "call_id", maintain_order=True)
        .agg(reward=pl.col("value").sum())
    )
    agent_node = integer_codes("agent") * (integer_codes("node").max() + 1) + integer_codes("node")
    joined = (
        calls.drop(OUTCOME_ONLY)
        .join(numbered.drop("parts"), "execution_id")
        .join(call_rewards, ["execution", "call_id"], "left")
        .with_columns(pl.col("reward").fill_null(0.0), agent_node=agent_node)
        .sort("execution", "seq")
    )
    is_llm = pl.col("kind") == "llm"
    counted = joined.with_columns(
        turn=is_llm.cum_sum(),
        # `calls` counts in causal order: parallel calls share it
        turn_index=pl.coalesce(
            "turn_index", is_llm.cum_sum().over("execution", "agent_node").cast(pl.Int32) - 1
        ),
    )
    with_parts = _add_part_advantages(counted, numbered, recipe.credit.outcome.peers)
    ordered = _add_effective_rewards(with_parts)
    if recipe.credit.step is None and not recipe.credit.uses_critic:
        return ordered
    each = (step_rewards(ordered, policy.name) for policy in recipe.policy)
    return ordered.with_columns(step_reward=pl.coalesce(*each))


def _add_effective_rewards(calls: pl.DataFrame) -> pl.DataFrame:
    """Move the rewards of agent and node calls to the last call that began inside them."""
    encloses = pl.col("kind").is_in(ENCLOSING) & (pl.col("reward") != 0)
    outer = calls.filter(encloses).select("execution", "end", "reward", own_seq="seq").sort("end")
    if outer.is_empty():
        return calls.with_columns(effective_reward="reward")
    starts = calls.select("execution", "start", "seq").sort("start", "seq")
    moved = outer.join_asof(
        starts,
        left_on="end",
        right_on="start",
        by="execution",
        allow_exact_matches=False,
        check_sortedness=False,  # it cannot be checked within executions
    ).with_columns(seq=pl.max_horizontal("seq", "own_seq"))
    by_call = moved.sort("execution", "own_seq").group_by("execution", "seq", maintain_order=True)
    joined = calls.join(
        by_call.agg(moved_reward=pl.col("reward").sum()),
        ["execution", "seq"],
        "left",
        maintain_order="left",
    )
    own = pl.when(encloses).then(0.0).otherwise("reward")
    return joined.with_columns(effective_reward=own + pl.col("moved_reward").fill_null(0.0)).drop(
        "moved_reward"
    )


def integer_codes(name: str) -> pl.Expr:
    """Number the values of a text column from 1, without gaps; null counts as the empty text."""
    # a category's own code counts all categories of this process, so products would overflow
    codes = pl.col(name).fill_null("").cast(pl.Categorical).to_physical()
    return codes.rank("dense").cast(pl.UInt64)


def _number_executions(executions: pl.DataFrame) -> pl.DataFrame:
    numbered = executions.filter("finite").select(
        "execution_id",
        "group_id",
        "outcome_reward",
        "outcome_advantage",
        "parts",
        group=pl.coalesce("group_id", "execution_id").rank("dense"),
    )
    return numbered.with_row_index("execution")


def _add_part_advantages(
    calls: pl.DataFrame, executions: pl.DataFrame, peers: Peers
) -> pl.DataFrame:
    """Set a call's outcome advantage to that of its part; 0 where only other parts have peers."""
    if peers is Peers.GROUP:
        return calls
    parts = executions.select("execution", "parts").explode("parts").unnest("parts")
    joined = calls.join(parts, ["execution", "part"], "left", maintain_order="left")
    own = pl.col("part_advantage").fill_null(0.0)
    return joined.with_columns(
        outcome_advantage=pl.when(pl.col("outcome_advantage").is_not_null()).then(own)
    )
