"""The step advantage: trained calls compared with other calls in the same state."""

import polars as pl

from ltrain_transforms.credit.ordering import integer_codes
from ltrain_transforms.credit.outcome import check_advantages
from ltrain_transforms.credit.returns import discounted_returns
from ltrain_transforms.estimators import STEPS, StepSettings, step_estimator
from ltrain_transforms.recipe import Step


def step_advantages(calls: pl.DataFrame, step: Step) -> pl.Series:
    """Return an advantage for each trained call, in the order of `calls`.

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
