"""The outcome advantage: executions, or parts of them, compared with their peers."""

import polars as pl

from ltrain_instrument.quantity import quantity
from ltrain_transforms.credit.members import component_weights, members
from ltrain_transforms.errors import BadEstimator
from ltrain_transforms.estimators import SAME, OutcomeSettings, outcome_estimator
from ltrain_transforms.recipe import Recipe


def outcome_advantages(
    recipe: Recipe,
    executions: pl.DataFrame,
    outcomes: pl.DataFrame,
    rewards: pl.DataFrame,
    calls: pl.DataFrame,
) -> pl.DataFrame:
    """Return the executions that have an outcome, with their advantage and their group's spread.

    Columns: `outcome_reward`; `outcome_advantage`, the mean of its parts', null where there is
    nothing to compare with; `parts`, the advantage of each part; `spread`, the standard deviation
    of the group's outcomes; `finite`, false where one of its rewards is NaN or infinite, so that it
    is not compared.

    Args:
        calls: `CREDIT_INPUTS` of at least these executions.
    """
    outcome = outcomes.rename({"reward": "outcome_reward"})
    rewarded = executions.join(outcome, "execution_id").sort("execution_id")
    is_finite = pl.col("value").is_finite().fill_null(False)
    not_finite = rewards.filter(~is_finite)["execution_id"].unique()
    checked = rewarded.with_columns(
        finite=pl.col("outcome_reward").is_finite().fill_null(False)
        & ~pl.col("execution_id").is_in(not_finite.implode())
    )
    advantages = _advantages(recipe, checked.filter("finite"), rewards, calls)
    reward = pl.when("finite").then("outcome_reward")
    differ = reward.max() - reward.min() > SAME
    spread = pl.when(differ).then(reward.std()).otherwise(0.0).over("group_id")
    return checked.join(advantages, "execution_id", "left", maintain_order="left").with_columns(
        spread=pl.when(pl.col("group_id").is_not_null()).then(spread)
    )


def _advantages(
    recipe: Recipe, executions: pl.DataFrame, rewards: pl.DataFrame, calls: pl.DataFrame
) -> pl.DataFrame:
    """Return `execution_id`, `outcome_advantage` and `parts`."""
    frame = members(executions, rewards, calls, recipe.reward, recipe.credit)
    outcome = recipe.credit.outcome
    settings = OutcomeSettings(outcome.decay, component_weights(recipe.reward))
    estimate = outcome_estimator(outcome.estimator).function
    advantage = estimate(frame.drop("execution_id", "part"), settings)
    by_part = frame.select("execution_id", "part").with_columns(
        part_advantage=check_advantages(outcome.estimator, advantage, frame.height)
    )
    return by_part.group_by("execution_id", maintain_order=True).agg(
        outcome_advantage=pl.col("part_advantage").mean(), parts=pl.struct("part", "part_advantage")
    )


def check_advantages(estimator: str, advantages: pl.Series, rows: int) -> pl.Series:
    """Return the advantages of an estimator as floats."""
    if not isinstance(advantages, pl.Series) or len(advantages) != rows:
        is_series = isinstance(advantages, pl.Series)
        got = quantity(len(advantages), "row") if is_series else type(advantages)
        raise BadEstimator(
            f"Estimator '{estimator}' received {quantity(rows, 'row')} and returned {got}; it must "
            "return a polars Series with one number a row."
        )
    numbers = advantages.cast(pl.Float64)
    wrong = rows - int(numbers.is_finite().fill_null(True).sum())
    if wrong:
        raise BadEstimator(
            f"Estimator '{estimator}' returned a NaN or an infinity for {wrong} of {rows} rows. It "
            "must return a finite number, or null where there is nothing to compare with."
        )
    return numbers
