"""Trained calls with their credit: outcome, process and step, fused as advantages with weights."""

from collections.abc import Iterable

import polars as pl

from ltrain_transforms.credit.codes import code
from ltrain_transforms.credit.process import against_group, with_returns
from ltrain_transforms.credit.returns import immediate
from ltrain_transforms.credit.step import step_advantage
from ltrain_transforms.recipe import Among, Credit, Recipe
from ltrain_transforms.tables import TRANSITIONS


def transitions(
    recipe: Recipe, compared: pl.DataFrame, calls: pl.DataFrame, rewards: pl.DataFrame
) -> pl.DataFrame:
    """Make `transitions` of the executions that are compared.

    Args:
        calls: `NARROW`.
    """
    credit = recipe.credit
    every = with_returns(_in_order(recipe, compared, calls, rewards), credit.process)
    llm = every.filter(pl.col("kind") == "llm")
    ours = against_group(llm, credit.process).filter(pl.col("trained_by").is_not_null())
    if credit.values_are_the_trainers:
        return _table(_with_rewards_for_values(ours))
    if credit.combine == "rewards":
        ours = ours.with_columns(process_advantage=pl.lit(0.0))  # the outcome has them already
    step = pl.lit(0.0) if credit.step is None else step_advantage(every, credit.step)
    return _table(_fused(ours.with_columns(step_advantage=step), credit))


def _in_order(
    recipe: Recipe, compared: pl.DataFrame, calls: pl.DataFrame, rewards: pl.DataFrame
) -> pl.DataFrame:
    """Give all calls in call order, with numbers for what they are compared by, and rewards."""
    group = pl.coalesce("group_id", "execution_id").rank("dense")
    executions = compared.filter("sound").select(
        "execution_id", "group_id", "outcome_reward", "outcome_advantage", "parts", group=group
    )
    given = rewards.filter(pl.col("call_id").is_not_null())
    given = given.group_by("execution_id", "call_id").agg(reward=pl.col("value").sum())
    scene = code("agent") * (code("node").max() + 1) + code("node")
    joined = (
        calls.drop("sort", "under")
        .join(executions.drop("parts").with_row_index("execution"), "execution_id")
        .join(given, ["execution_id", "call_id"], "left")
        .with_columns(pl.col("reward").fill_null(0.0), scene=scene)
        .sort("execution", "seq")
    )
    is_llm = pl.col("kind") == "llm"
    # counted among LLM calls only: the k-th of this agent and node
    told = joined.with_columns(
        turn=is_llm.cum_sum().over("execution"),
        kth=is_llm.cum_sum().over("execution", "scene"),
    )
    told = _with_parts_advantage(told, executions, recipe.credit.outcome.among)
    return _with_immediate(told, (policy.name for policy in recipe.policy))


def _with_parts_advantage(
    calls: pl.DataFrame, executions: pl.DataFrame, among: Among
) -> pl.DataFrame:
    """Give a call its part's advantage; 0 where only other parts of the execution have peers."""
    if among is Among.GROUP:
        return calls
    parts = executions.select("execution_id", "parts").explode("parts").unnest("parts")
    joined = calls.join(parts, ["execution_id", "part"], "left", maintain_order="left")
    own = pl.col("part_advantage").fill_null(0.0)
    return joined.with_columns(
        outcome_advantage=pl.when(pl.col("outcome_advantage").is_not_null()).then(own)
    )


def _with_immediate(calls: pl.DataFrame, policies: Iterable[str]) -> pl.DataFrame:
    given = [immediate(calls, policy) for policy in policies]
    return calls.with_columns(immediate=pl.coalesce(given))


def _fused(ours: pl.DataFrame, credit: Credit) -> pl.DataFrame:
    step = 0.0 if credit.step is None else credit.step.weight
    process = credit.process.weight * pl.col("process_advantage")
    return ours.with_columns(
        advantage=pl.col("outcome_advantage") + process + step * pl.col("step_advantage")
    )


def _with_rewards_for_values(ours: pl.DataFrame) -> pl.DataFrame:
    """Give no advantage but all rewards: the environment's to the call before, the outcome last."""
    last = pl.col("seq") == pl.col("seq").max().over("execution", "trained_by")
    outcome = pl.when(last).then("outcome_reward").otherwise(0.0)
    nothing = ("outcome_advantage", "process_advantage", "step_advantage", "advantage")
    return ours.with_columns(
        *(pl.lit(0.0).alias(name) for name in nothing), reward=pl.col("immediate") + outcome
    )


def _table(ours: pl.DataFrame) -> pl.DataFrame:
    told = ours.with_columns(t=pl.col("seq"), policy=pl.col("trained_by"))
    return TRANSITIONS.select(told.lazy()).collect()
