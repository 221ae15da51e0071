"""Evaluations and rules -> rewards: each contribution, with the span that made it so.

AIR: signals in a trace become intermediate rewards (Agent Lightning, section 3.4.2). A rule looks
at calls of one kind; where its predicate holds, its value goes to the call it credits. Bounds hold
for the sum over an execution, in call order, before the weight.
"""

import polars as pl

from ltrain_transforms import sql
from ltrain_transforms.recipe import Credited, FailedCounts, Recipe, Reward
from ltrain_transforms.selection import dropped, gathered, trained
from ltrain_transforms.tables import DROPS, REWARDS

REASONS = {
    "uncredited": "the rule fired, and there is no call that it credits",
    "unheard": "no reward of the recipe takes this evaluation from whoever said it",
}


def rewards(
    recipe: Recipe, calls: pl.DataFrame, executions: pl.DataFrame, evaluations: pl.DataFrame
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Give `rewards` and, as `DROPS`, what was said or fired and credits nothing."""
    asked = [reward for reward in recipe.reward if reward.evaluation]
    heard = [evaluations.filter(_heard(reward)) for reward in asked]
    judged = gathered(REWARDS, *map(_evaluated, asked, heard))
    unheard = evaluations.join(
        pl.concat([evaluations.clear(), *heard]), ["evidence", "name"], "anti"
    )
    judged = gathered(REWARDS, judged, _of_failed(recipe, executions, judged))
    neighbours = _neighbours(calls, recipe)
    ruled = [_ruled(reward, neighbours) for reward in recipe.reward if reward.value is not None]
    rows = gathered(REWARDS, judged, *(rows for rows, _ in ruled))
    silent = dropped("rewards", unheard.with_columns(reason=pl.lit("unheard")), "evidence", REASONS)
    return rows, gathered(DROPS, silent, *(drops for _, drops in ruled))


def outcomes(recipe: Recipe, rewards: pl.DataFrame, executions: pl.DataFrame) -> pl.DataFrame:
    """Sum what was given to each whole execution: `execution_id`, `reward`.

    Where the recipe names evaluations, an execution without any of them is left out.
    """
    whole = rewards.filter(pl.col("call_id").is_null())
    summed = whole.group_by("execution_id").agg(reward=pl.col("value").sum())
    judged = whole.filter(pl.col("source") != "rule")["execution_id"].unique()
    asked = any(reward.evaluation for reward in recipe.reward)
    there = executions.select("execution_id")
    if asked:
        there = there.filter(pl.col("execution_id").is_in(judged.implode()))
    joined = there.join(summed, "execution_id", "left", maintain_order="left")
    return joined.with_columns(pl.col("reward").fill_null(0.0))


def _heard(reward: Reward) -> pl.Expr:
    named = pl.col("name") == reward.evaluation
    return named if reward.from_ == "any" else named & (pl.col("source") == reward.from_)


def _evaluated(reward: Reward, heard: pl.DataFrame) -> pl.DataFrame:
    rows = heard.with_columns(
        rule=pl.lit(reward.name),
        value=pl.col("value").clip(reward.at_least, reward.at_most) * reward.weight,
    )
    return REWARDS.select(rows.lazy()).collect()


def _of_failed(recipe: Recipe, executions: pl.DataFrame, judged: pl.DataFrame) -> pl.DataFrame:
    """Give the recipe's reward to agents that failed and that nobody evaluated."""
    asked = [reward for reward in recipe.reward if reward.evaluation]
    if not asked or not isinstance(recipe.filter.failed, FailedCounts):
        return REWARDS.empty()
    whole = judged.filter(pl.col("call_id").is_null())["execution_id"]
    failed = executions.filter(
        pl.col("outcome").is_in(["error", "timeout"]),
        ~pl.col("execution_id").is_in(whole.implode()),
    ).with_columns(
        call_id=pl.lit(None),
        rule=pl.lit(asked[0].name),
        source=pl.lit("recipe"),
        value=recipe.filter.failed.reward * asked[0].weight,
        evidence=pl.col("source_spans").list.last(),
    )
    return REWARDS.select(failed.lazy()).collect()


def _neighbours(calls: pl.DataFrame, recipe: Recipe) -> pl.LazyFrame:
    """Add what a rule may credit: the trained calls before, and the last of all."""
    ours = pl.when(trained(recipe.policy[0])).then("call_id")
    return (
        calls.lazy()
        .sort("execution_id", "seq")
        .with_columns(
            previous_trained=ours.forward_fill().shift(1).over("execution_id", order_by="seq"),
            last_trained=ours.drop_nulls().last().over("execution_id"),
        )
    )


CREDITED_CALL = {
    Credited.SELF: pl.col("call_id"),
    Credited.REQUESTER: pl.col("requested_by"),
    Credited.PREVIOUS: pl.col("previous_trained"),
    Credited.LAST: pl.col("last_trained"),
    Credited.ROLLOUT: pl.lit(None, pl.String),
}


def _ruled(reward: Reward, calls: pl.LazyFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    looked_at = calls.filter(pl.col("kind") == reward.on)
    named = sql.with_names(reward.name, looked_at, reward.let)
    fired = sql.fired(named, reward.when, str(reward.value))
    total = pl.col("value").cum_sum().clip(reward.at_least, reward.at_most)
    bounded = (total - total.shift(1, fill_value=0.0)).over("execution_id", order_by="seq")
    credited = (
        fired.filter(pl.col("value").is_finite())
        .with_columns(
            value=bounded * reward.weight,
            evidence=pl.col("call_id"),
            call_id=CREDITED_CALL[reward.credit_to],
            rule=pl.lit(reward.name),
            source=pl.lit("rule"),
        )
        .collect()
    )
    placed = pl.lit(reward.credit_to == Credited.ROLLOUT) | pl.col("call_id").is_not_null()
    lost = credited.filter(~placed).with_columns(reason=pl.lit("uncredited"))
    rows = REWARDS.select(credited.filter(placed).sort("execution_id", "seq").lazy())
    return rows.collect(), dropped("rewards", lost, "evidence", REASONS)
