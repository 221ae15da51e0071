"""Trained calls with their credit: outcome, process and step, fused as advantages with weights."""

import polars as pl

from ltrain_transforms.credit.ordering import in_order
from ltrain_transforms.credit.process import against_group, with_returns
from ltrain_transforms.credit.step import step_advantage
from ltrain_transforms.recipe import Credit, Recipe
from ltrain_transforms.tables import TRANSITIONS

NOTHING = ("outcome_advantage", "process_advantage", "step_advantage", "advantage")


def transitions(
    recipe: Recipe, compared: pl.DataFrame, calls: pl.DataFrame, rewards: pl.DataFrame
) -> pl.DataFrame:
    """Make `transitions` of the executions that are compared.

    Args:
        calls: `NARROW`.
    """
    credit = recipe.credit
    every = with_returns(in_order(recipe, compared, calls, rewards), credit.process)
    llm = against_group(every.filter(pl.col("kind") == "llm"), credit.process)
    ours = llm.filter(pl.col("trained_by").is_not_null())
    if credit.uses_critic:
        return _table(_with_rewards_for_values(ours))
    if credit.combine == "rewards":
        ours = ours.with_columns(process_advantage=pl.lit(0.0))  # the outcome has them already
    step = pl.lit(0.0) if credit.step is None else step_advantage(every, credit.step)
    return _table(_fused(ours.with_columns(step_advantage=step), credit))


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
    return ours.with_columns(
        *(pl.lit(0.0).alias(name) for name in NOTHING), reward=pl.col("immediate") + outcome
    )


def _table(ours: pl.DataFrame) -> pl.DataFrame:
    told = ours.with_columns(t=pl.col("seq"), policy=pl.col("trained_by"))
    return TRANSITIONS.select(told.lazy()).collect()
