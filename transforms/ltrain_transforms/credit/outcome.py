"""The outcome advantage: executions, or the parts of them, against their peers."""

import polars as pl

from ltrain_transforms.credit.members import component_weights, members
from ltrain_transforms.errors import BadEstimator
from ltrain_transforms.estimators import SAME, OutcomeSettings, outcome_estimator
from ltrain_transforms.recipe import Recipe


def compared(
    recipe: Recipe,
    executions: pl.DataFrame,
    outcomes: pl.DataFrame,
    rewards: pl.DataFrame,
    calls: pl.DataFrame,
) -> pl.DataFrame:
    """Add outcome, advantage and spread to the executions that have an outcome.

    Columns: `outcome_reward`; `outcome_advantage`, null where there is nothing to compare with,
    else the mean of its parts'; `parts`, each part's own; `spread`, the deviation of the group's
    outcomes; `sound`, false where a reward of it is no finite number: it is compared with none.

    Args:
        calls: `NARROW`, of these executions at least.
    """
    outcome = outcomes.rename({"reward": "outcome_reward"})
    rewarded = executions.join(outcome, "execution_id").sort("execution_id")
    finite = pl.col("value").is_finite().fill_null(False)
    unsound = rewards.filter(~finite)["execution_id"].unique()
    told = rewarded.with_columns(
        sound=pl.col("outcome_reward").is_finite().fill_null(False)
        & ~pl.col("execution_id").is_in(unsound.implode())
    )
    judged = _judged(recipe, told.filter("sound"), rewards, calls)
    worth = pl.when("sound").then("outcome_reward")
    differ = worth.max() - worth.min() > SAME
    spread = pl.when(differ).then(worth.std()).otherwise(0.0).over("group_id")
    return told.join(judged, "execution_id", "left", maintain_order="left").with_columns(
        spread=pl.when(pl.col("group_id").is_not_null()).then(spread)
    )


def _judged(
    recipe: Recipe, executions: pl.DataFrame, rewards: pl.DataFrame, calls: pl.DataFrame
) -> pl.DataFrame:
    """Give `execution_id`, `outcome_advantage` and `parts`."""
    compared = members(executions, rewards, calls, recipe.reward, recipe.credit)
    outcome = recipe.credit.outcome
    settings = OutcomeSettings(outcome.decay, component_weights(recipe.reward))
    advantage = outcome_estimator(outcome.estimator)(
        compared.drop("execution_id", "part"), settings
    )
    told = compared.select("execution_id", "part").with_columns(
        part_advantage=checked(outcome.estimator, advantage, compared.height)
    )
    return told.group_by("execution_id", maintain_order=True).agg(
        outcome_advantage=pl.col("part_advantage").mean(),
        parts=pl.struct("part", "part_advantage"),
    )


def checked(name: str, advantage: pl.Series, rows: int) -> pl.Series:
    """Give an estimator's answer as it is, if it is one finite number or null a row.

    Raises:
        BadEstimator: when it is not.
    """
    if not isinstance(advantage, pl.Series) or len(advantage) != rows:
        got = f"{len(advantage)} rows" if isinstance(advantage, pl.Series) else type(advantage)
        raise BadEstimator(
            f"Estimator '{name}' was given {rows} rows and gave {got}; it must give a polars "
            "Series with one number a row."
        )
    numbers = advantage.cast(pl.Float64)
    wrong = rows - int(numbers.is_finite().fill_null(True).sum())
    if wrong:
        raise BadEstimator(
            f"Estimator '{name}' gave {wrong} of {rows} rows a NaN or an infinity. It must give a "
            "finite number, or null where there is nothing to compare with."
        )
    return numbers
