"""Selection of the trained groups: those in which some execution is better than another."""

from hashlib import sha256

import polars as pl

from ltrain_transforms.estimators import SAME
from ltrain_transforms.recipe import Recipe
from ltrain_transforms.source import to_drops

REASONS = {
    "not_finite": "one of its rewards is not a finite number",
    "alone": "no other execution of its group counts (for `reinforce_pp`: of its batch), or, for "
    "an estimator with a running baseline, none ended before it, so there is nothing to compare "
    "it with",
    "no_spread": "all executions of its group have the same outcome and the same process rewards, "
    "and its advantage is 0",
    "low_spread": "filter.max_groups selects the groups with the widest outcome",
}


def select_groups(
    recipe: Recipe, executions: pl.DataFrame, transitions: pl.DataFrame
) -> tuple[pl.Series, pl.DataFrame]:
    """Return the ids of the trained executions, and the others as `DROPS`.

    `filter.max_groups` selects the groups with the widest outcome. Ties are broken by the largest
    advantage, then by a hash, so that no task is favoured by its name. With `gae` the trainer
    computes the advantages, so equal outcomes are no reason to drop a group.

    Args:
        executions: those with `outcome_advantages`.
    """
    largest = transitions.group_by("execution_id").agg(
        largest_advantage=pl.max_horizontal(
            pl.col("advantage").abs().max(),
            pl.col("process_advantage").abs().max(),
            pl.col("step_advantage").abs().max(),
        )
    )
    group = pl.coalesce("group_id", "execution_id")
    marked = executions.join(largest, "execution_id", "left").with_columns(
        pl.col("largest_advantage").fill_null(0.0).max().over(group)
    )
    flat = (pl.col("spread").fill_null(0.0) <= SAME) & (pl.col("largest_advantage") <= SAME)
    if recipe.credit.uses_critic:
        flat = pl.lit(False)
    marked = marked.with_columns(
        reason=pl.when(~pl.col("finite")).then(pl.lit("not_finite"))
        .when(pl.col("outcome_advantage").is_null()).then(pl.lit("alone"))
        .when(flat).then(pl.lit("no_spread"))
    )  # fmt: skip
    if recipe.filter.max_groups is not None:
        marked = _mark_low_spread(marked, recipe.filter.max_groups)
    left_out = marked.filter(pl.col("reason").is_not_null())
    selected = marked.filter(pl.col("reason").is_null())["execution_id"]
    return selected, to_drops("groups", left_out, "execution_id", REASONS)


def _mark_low_spread(marked: pl.DataFrame, max_groups: int) -> pl.DataFrame:
    """Mark all but the `max_groups` widest groups; executions without a group stay as they are."""
    grouped = pl.col("reason").is_null() & pl.col("group_id").is_not_null()
    candidates = marked.filter(grouped).unique("group_id")
    ties = [sha256(name.encode()).hexdigest() for name in candidates["group_id"]]
    order = candidates.with_columns(tie=pl.Series(ties, dtype=pl.String))
    ranked = order.sort("spread", "largest_advantage", "tie", descending=[True, True, False])
    widest = ranked["group_id"].head(max_groups)
    low = grouped & ~pl.col("group_id").is_in(widest.implode())
    return marked.with_columns(reason=pl.when(low).then(pl.lit("low_spread")).otherwise("reason"))
