"""Trained calls with their credit: outcome, process and step advantages, fused with weights."""

import polars as pl

from ltrain_transforms.credit.ordering import integer_codes, order_calls
from ltrain_transforms.credit.outcome import check_advantages
from ltrain_transforms.credit.returns import discounted_returns, process_advantages, with_returns
from ltrain_transforms.estimators import STEPS, StepSettings, step_estimator
from ltrain_transforms.recipe import Credit, Recipe, Step
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


def step_advantages(calls: pl.DataFrame, step: Step) -> pl.Series:
    """Return the advantage of each trained call over calls in the same state, in order of `calls`.

    Where the estimator returns null, the advantage is 0.

    Args:
        calls: all calls, as `order_calls` returns them.
    """
    is_last = pl.col("seq") == pl.col("seq").max().over("execution")
    outcome = pl.when(is_last).then("outcome_reward").fill_null(0.0)
    with_outcome = calls.with_columns(pl.col("effective_reward") + outcome)
    returns = discounted_returns(with_outcome, step.gamma)
    trained = calls.with_columns(returns=returns).filter(pl.col("policy").is_not_null())
    settings = StepSettings(step.gamma, step.history, step.power, step.scale)
    steps = _to_steps(trained)
    advantages = step_estimator(step.estimator).function(steps, settings)
    return check_advantages(step.estimator, advantages, steps.height).fill_null(0.0)


def _to_steps(trained: pl.DataFrame) -> pl.DataFrame:
    """Return the `STEPS` of the trained calls."""
    is_last = pl.col("seq") == pl.col("seq").max().over("execution", "policy")
    outcome = pl.when(is_last).then("outcome_reward").otherwise(0.0)
    coded = trained.with_columns(
        policy=integer_codes("policy"),
        state=integer_codes("state_digest"),
        outcome=outcome,
        reward="step_reward",
    ).with_columns(place=pl.col("agent_node") * (pl.col("policy").max() + 1) + pl.col("policy"))
    group, place, state = (pl.col(name).cast(pl.UInt64) for name in ("group", "place", "state"))
    anchor = (group * (place.max() + 1) + place) * (state.max() + 1) + state
    steps = coded.with_columns(
        anchor=pl.when(pl.col("state_digest").is_not_null()).then(anchor).rank("dense"),
        turn_index=pl.int_range(pl.len()).over("execution", "place"),
    )
    return steps.select(pl.col(name).cast(dtype) for name, dtype in STEPS.items())
