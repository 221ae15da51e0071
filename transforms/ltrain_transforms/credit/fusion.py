"""Trained calls with their credit: outcome, process and step advantages, fused with weights."""

import polars as pl

from ltrain_transforms.credit.ordering import order_calls
from ltrain_transforms.credit.returns import process_advantages, with_returns
from ltrain_transforms.credit.step import step_advantages
from ltrain_transforms.recipe import Credit, Recipe
from ltrain_transforms.tables import TRANSITIONS

ADVANTAGES = ("outcome_advantage", "process_advantage", "step_advantage", "advantage")


def transitions(
    recipe: Recipe, executions: pl.DataFrame, calls: pl.DataFrame, rewards: pl.DataFrame
) -> pl.DataFrame:
    """Return the `TRANSITIONS` of the compared executions.

    Args:
        executions: those with `outcome_advantages`.
        calls: `CREDIT_INPUTS`.
    """
    credit = recipe.credit
    ordered = with_returns(order_calls(recipe, executions, calls, rewards), credit.process)
    llm = process_advantages(ordered.filter(pl.col("kind") == "llm"), credit.process)
    trained = llm.filter(pl.col("policy").is_not_null())
    if credit.uses_critic:
        return _to_table(_with_rewards_for_critic(trained))
    if credit.combine == "rewards":  # the outcome contains the call rewards already
        trained = trained.with_columns(process_advantage=pl.lit(0.0))
    step = pl.lit(0.0) if credit.step is None else step_advantages(ordered, credit.step)
    return _to_table(_fuse(trained.with_columns(step_advantage=step), credit))


def _fuse(trained: pl.DataFrame, credit: Credit) -> pl.DataFrame:
    step_weight = 0.0 if credit.step is None else credit.step.weight
    process = credit.process.weight * pl.col("process_advantage")
    return trained.with_columns(
        advantage=pl.col("outcome_advantage") + process + step_weight * pl.col("step_advantage")
    )


def _with_rewards_for_critic(trained: pl.DataFrame) -> pl.DataFrame:
    """Set advantages to 0, and `reward` to the step reward plus, at the last call, the outcome."""
    last = pl.col("seq") == pl.col("seq").max().over("execution", "policy")
    outcome = pl.when(last).then("outcome_reward").otherwise(0.0)
    return trained.with_columns(
        *(pl.lit(0.0).alias(name) for name in ADVANTAGES), reward=pl.col("step_reward") + outcome
    )


def _to_table(trained: pl.DataFrame) -> pl.DataFrame:
    return TRANSITIONS.select(trained.with_columns(t=pl.col("seq")).lazy()).collect()
