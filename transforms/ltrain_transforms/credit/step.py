"""The step advantage: trained calls against calls that stood before the same choice."""

import polars as pl

from ltrain_transforms.credit.ordering import code
from ltrain_transforms.credit.outcome import checked
from ltrain_transforms.credit.returns import discounted
from ltrain_transforms.estimators import STEPS, StepSettings, step_estimator
from ltrain_transforms.recipe import Step


def step_advantage(calls: pl.DataFrame, step: Step) -> pl.Series:
    """Give an advantage a trained call, in the order of `calls`: all calls, as `in_order` has them.

    Where an estimator gives null, there was nothing to compare with: 0.
    """
    outcome = pl.when(pl.col("seq") == pl.col("seq").max().over("execution")).then("outcome_reward")
    whole = calls.with_columns(pl.col("felt") + outcome.fill_null(0.0))
    returns = discounted(whole, step.gamma)
    ours = calls.with_columns(returns=returns).filter(pl.col("trained_by").is_not_null())
    settings = StepSettings(step.gamma, step.history, step.power, step.scale)
    steps = _numbered(ours)
    given = step_estimator(step.estimator)(steps, settings)
    return checked(step.estimator, given, steps.height).fill_null(0.0)


def _numbered(ours: pl.DataFrame) -> pl.DataFrame:
    """Make `STEPS` of the trained calls."""
    policy, state = (code(name) for name in ("trained_by", "state_digest"))
    last = pl.col("seq") == pl.col("seq").max().over("execution", "trained_by")
    placed = ours.with_columns(policy=policy, state=state).with_columns(
        place=pl.col("scene") * (pl.col("policy").max() + 1) + pl.col("policy"),
        outcome=pl.when(last).then("outcome_reward").otherwise(0.0),
        reward="immediate",
    )
    wide = (pl.col(name).cast(pl.UInt64) for name in ("group", "place", "state"))
    group, place, state = wide
    anchor = (group * (place.max() + 1) + place) * (state.max() + 1) + state
    told = placed.with_columns(
        anchor=pl.when(pl.col("state_digest").is_not_null()).then(anchor).rank("dense"),
        turn_index=pl.int_range(pl.len()).over("execution", "place"),
    )
    return told.select(pl.col(name).cast(dtype) for name, dtype in STEPS.items())
