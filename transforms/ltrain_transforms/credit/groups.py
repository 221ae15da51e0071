"""Which groups are trained: those where something was better than something else."""

from hashlib import sha256

import polars as pl

from ltrain_transforms.estimators import SAME
from ltrain_transforms.recipe import Recipe
from ltrain_transforms.selection import dropped

REASONS = {
    "not_finite": "one of its rewards is not a finite number",
    "alone": "no other execution of its group counts, or none came before it where the baseline "
    "is a running one, so there is nothing to compare it with",
    "no_spread": "all executions of its group are worth the same, in outcome and in process",
    "low_spread": "filter.max_groups keeps the groups with the widest outcome",
}


def chosen(
    recipe: Recipe, compared: pl.DataFrame, transitions: pl.DataFrame
) -> tuple[pl.Series, pl.DataFrame]:
    """Give the ids of the executions to train on, and the others as `DROPS`.

    `filter.max_groups` keeps that many with the widest outcome; among equals the process decides,
    then a hash, so that no task is favoured by its name. Where values are the trainer's, none is
    flat.
    """
    felt = transitions.group_by("execution_id").agg(
        felt=pl.max_horizontal(
            pl.col("advantage").abs().max(),
            pl.col("process_advantage").abs().max(),
            pl.col("step_advantage").abs().max(),
        )
    )
    rivals = pl.coalesce("group_id", "execution_id")
    marked = compared.join(felt, "execution_id", "left").with_columns(
        moved=pl.col("felt").fill_null(0.0).max().over(rivals)
    )
    flat = (pl.col("spread") <= SAME) & (pl.col("moved") <= SAME)
    if recipe.credit.uses_critic:
        flat = pl.lit(False)
    marked = marked.with_columns(
        reason=pl.when(~pl.col("sound")).then(pl.lit("not_finite"))
        .when(pl.col("outcome_advantage").is_null()).then(pl.lit("alone"))
        .when(flat).then(pl.lit("no_spread"))
    )  # fmt: skip
    if recipe.filter.max_groups is not None:
        marked = _widest(marked, recipe.filter.max_groups)
    left_out = marked.filter(pl.col("reason").is_not_null())
    kept = marked.filter(pl.col("reason").is_null())["execution_id"]
    return kept, dropped("groups", left_out, "execution_id", REASONS)


def _widest(marked: pl.DataFrame, groups: int) -> pl.DataFrame:
    """Mark all but `groups` groups; an execution that has none is left as it is."""
    grouped = pl.col("reason").is_null() & pl.col("group_id").is_not_null()
    candidates = marked.filter(grouped).unique("group_id")
    ties = [sha256(name.encode()).hexdigest() for name in candidates["group_id"]]
    order = candidates.with_columns(tie=pl.Series(ties, dtype=pl.String))
    ranked = order.sort("spread", "moved", "tie", descending=[True, True, False])
    best = ranked["group_id"].head(groups)
    narrow = grouped & ~pl.col("group_id").is_in(best.implode())
    return marked.with_columns(
        reason=pl.when(narrow).then(pl.lit("low_spread")).otherwise("reason")
    )
