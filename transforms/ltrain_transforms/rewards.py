"""Evaluations and rules -> rewards: each contribution, with the span that made it so.

AIR: signals in a trace become intermediate rewards (Agent Lightning, section 3.4.2). Rules over
calls and evaluations see one execution each: `rewards`. Rules over executions and gates need the
group and the outcome, which are known once all executions are: `settled`.
"""

import polars as pl

from ltrain_transforms import contributions
from ltrain_transforms.recipe import FailedCounts, Recipe, Reward
from ltrain_transforms.selection import gathered, withheld
from ltrain_transforms.standing import gated, of_rollouts, standing
from ltrain_transforms.tables import DROPS, REWARDS

REASONS = {
    **contributions.REASONS,
    "unheard": "no reward of the recipe takes this evaluation from whoever said it",
    "withheld": "spans are missing that the execution's agent ended, so that it counts as failed "
    "and gets filter.failed instead; filter.allow = ['incomplete'] lets evaluations and rules "
    "count",
    "gated": "the rule fired, and its gate does not hold for the execution",
}


def rewards(
    recipe: Recipe, calls: pl.DataFrame, executions: pl.DataFrame, evaluations: pl.DataFrame
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return `rewards` of single executions and, as `DROPS`, what was said or fired in vain.

    Rules over executions and gates are left to `settled`.
    """
    return apart(contributed(recipe, calls, executions, evaluations))


def settled(
    recipe: Recipe, rewards: pl.DataFrame, executions: pl.DataFrame
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Add what rules over executions give, and take away what gates do not let through.

    Args:
        rewards: those of all executions of the wave, as `rewards` gave them.

    Returns:
        `REWARDS` that count, and the others as `DROPS`.
    """
    if not any(rule.on == "rollout" or rule.gate is not None for rule in recipe.reward):
        return rewards, DROPS.empty()
    return apart(resettled(recipe, rewards, executions))


def contributed(
    recipe: Recipe, calls: pl.DataFrame, executions: pl.DataFrame, evaluations: pl.DataFrame
) -> pl.DataFrame:
    """Return the `CONTRIBUTIONS` of evaluations and of rules over calls."""
    asked = [reward for reward in recipe.reward if reward.evaluation]
    every = gathered(REWARDS, *(_evaluated(reward, evaluations) for reward in asked))
    void = _void(recipe, executions)
    judged, voided = every.filter(~void), every.filter(void)
    failed = _of_failed(recipe, executions, judged)
    heard = pl.any_horizontal(pl.lit(False), *map(_heard, asked))
    unheard = evaluations.filter(~heard).with_columns(rule="name")
    return pl.concat(
        [
            contributions.CONTRIBUTIONS.to_frame(),
            _with_reason(gathered(REWARDS, judged, failed), None),
            _with_reason(voided, "withheld"),
            _with_reason(unheard, "unheard"),
            *(unpaid(recipe, ruled, executions) for ruled in contributions.of_calls(recipe, calls)),
        ]
    )


def _void(recipe: Recipe, executions: pl.DataFrame) -> pl.Expr:
    """Return whether a row is of an execution that withheld spans."""
    withholding = executions.filter(withheld(recipe.filter))["execution_id"]
    return pl.col("execution_id").is_in(withholding.implode())


def unpaid(recipe: Recipe, ruled: pl.DataFrame, executions: pl.DataFrame) -> pl.DataFrame:
    """Take away what rules pay to executions that withheld spans; what they take counts.

    Args:
        ruled: `CONTRIBUTIONS` of rules.
    """
    pays = _void(recipe, executions) & pl.col("reason").is_null() & (pl.col("value") > 0)
    reason = pl.when(pays).then(pl.lit("withheld")).otherwise("reason")
    return ruled.with_columns(reason=reason)


def _with_reason(evaluated: pl.DataFrame, reason: str | None) -> pl.DataFrame:
    """Return what evaluations say as `CONTRIBUTIONS`; None: it counts."""
    reasons = pl.lit(reason, pl.String).alias("reason"), pl.lit(None, pl.String).alias("error")
    return evaluated.with_columns(reasons).select(contributions.CONTRIBUTIONS.names())


def resettled(recipe: Recipe, rewards: pl.DataFrame, executions: pl.DataFrame) -> pl.DataFrame:
    """Return `rewards` and those of rules over executions, with a reason where a gate is shut."""
    late = [rule for rule in recipe.reward if rule.on == "rollout"]
    gates = [rule for rule in recipe.reward if rule.gate is not None]
    known = beside(recipe, rewards, executions)
    every = pl.concat([contributions.CONTRIBUTIONS.to_frame(), *of_rollouts(late, known)])
    ruled = unpaid(recipe, every, executions)
    vain = pl.col("reason").is_not_null()
    fired = REWARDS.select(ruled.filter(~vain).lazy()).collect()
    through = gated(gates, gathered(REWARDS, rewards, fired), known)
    names = contributions.CONTRIBUTIONS.names()
    told = through.with_columns(error=pl.lit(None, pl.String))
    return pl.concat([told.select(names), ruled.filter(vain).select(names)])


def beside(recipe: Recipe, rewards: pl.DataFrame, executions: pl.DataFrame) -> pl.DataFrame:
    """Give the executions with `STANDING`: what `rewards` make of them, those with a gate aside."""
    gates = [rule.name for rule in recipe.reward if rule.gate is not None]
    open_ones = rewards.filter(~pl.col("rule").is_in(gates))
    return standing(executions, outcomes(recipe, open_ones, executions))


def apart(contributed: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Split `CONTRIBUTIONS` into `REWARDS` and `DROPS`: those with a reason do not count."""
    counts = pl.col("reason").is_null()
    given, vain = contributed.filter(counts), contributed.filter(~counts)
    sentence = pl.col("reason").replace_strict(REASONS, return_dtype=pl.String)
    drops = vain.select(
        stage=pl.lit("rewards"),
        id="evidence",
        reason="reason",
        detail=pl.concat_str("rule", sentence, "error", separator=": ", ignore_nulls=True),
    )
    return REWARDS.select(given.lazy()).collect(), DROPS.select(drops.lazy()).collect()


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


def _evaluated(reward: Reward, evaluations: pl.DataFrame) -> pl.DataFrame:
    rows = evaluations.filter(_heard(reward)).with_columns(
        rule=pl.lit(reward.name),
        value=pl.col("value").clip(reward.min, reward.max) * reward.weight,
    )
    return REWARDS.select(rows.lazy()).collect()


def _of_failed(recipe: Recipe, executions: pl.DataFrame, judged: pl.DataFrame) -> pl.DataFrame:
    """Return the recipe's reward of agents that failed and that nobody evaluated."""
    asked = [reward for reward in recipe.reward if reward.evaluation]
    if not asked or not isinstance(recipe.filter.failed, FailedCounts):
        return REWARDS.empty()
    first = next((reward for reward in asked if reward.gate is None), asked[0])
    whole = judged.filter(pl.col("call_id").is_null())["execution_id"]
    failed = executions.filter(
        pl.col("outcome").is_in(["error", "timeout"]) | withheld(recipe.filter),
        ~pl.col("execution_id").is_in(whole.implode()),
    ).with_columns(
        call_id=pl.lit(None),
        rule=pl.lit(first.name),
        source=pl.lit("recipe"),
        value=recipe.filter.failed.reward * first.weight,
        evidence=pl.col("source_spans").list.last(),
    )
    return REWARDS.select(failed.lazy()).collect()
