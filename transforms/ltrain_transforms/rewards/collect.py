"""Evaluations and rules -> rewards: each contribution, with the span that caused it.

AIR: signals in a trace become intermediate rewards (Agent Lightning, section 3.4.2). `rewards` runs
evaluations and the rules over calls, which read one execution at a time. `apply_gates` runs the
rules over executions and the gates, which read the group and the outcome and therefore need all
executions of a wave.
"""

import polars as pl

from ltrain_transforms.recipe import FailedCounts, Recipe, Reward
from ltrain_transforms.rewards.evaluations import FAULTS
from ltrain_transforms.rewards.group_stats import from_rollout_rules, group_stats, mark_gated
from ltrain_transforms.rewards.rule_contributions import CONTRIBUTIONS, from_call_rules
from ltrain_transforms.rewards.rule_contributions import REASONS as RULE_REASONS
from ltrain_transforms.source import concat_table, has_withheld_spans
from ltrain_transforms.tables import DROPS, REWARDS

REASONS = {
    **FAULTS,
    **RULE_REASONS,
    "unheard": "no reward of the recipe takes this evaluation from this source",
    "withheld": "spans are missing that the execution's agent ended, so that it counts as failed "
    "and gets filter.failed instead; filter.allow = ['incomplete'] lets evaluations and rules "
    "count",
    "gated": "the rule fired, and its gate does not hold for the execution",
}


def rewards(
    recipe: Recipe, calls: pl.DataFrame, executions: pl.DataFrame, evaluations: pl.DataFrame
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the `REWARDS` of single executions, and the other contributions as `DROPS`.

    Rules over executions and gates are left to `apply_gates`.
    """
    return split_contributions(execution_contributions(recipe, calls, executions, evaluations))


def apply_gates(
    recipe: Recipe, rewards: pl.DataFrame, executions: pl.DataFrame
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Add the rewards of rules over executions, and remove the rewards whose gate does not hold.

    Args:
        rewards: what `rewards` returned for all executions of the wave.

    Returns:
        The `REWARDS` that count, and the other contributions as `DROPS`.
    """
    if not any(rule.on == "rollout" or rule.gate is not None for rule in recipe.reward):
        return rewards, DROPS.empty()
    return split_contributions(_gated_contributions(recipe, rewards, executions))


def execution_contributions(
    recipe: Recipe, calls: pl.DataFrame, executions: pl.DataFrame, evaluations: pl.DataFrame
) -> pl.DataFrame:
    """Return the `CONTRIBUTIONS` of evaluations and of rules over calls."""
    from_rules = (
        mark_withheld(recipe, rule, executions) for rule in from_call_rules(recipe, calls)
    )
    return pl.concat([from_evaluations(recipe, executions, evaluations), *from_rules])


def from_evaluations(
    recipe: Recipe, executions: pl.DataFrame, evaluations: pl.DataFrame
) -> pl.DataFrame:
    """Return the `CONTRIBUTIONS` of evaluations, and of `filter.failed` where none judges."""
    takers = [reward for reward in recipe.reward if reward.evaluation]
    taken = concat_table(REWARDS, *(_evaluation_rewards(reward, evaluations) for reward in takers))
    withheld = _of_withholding(recipe, executions)
    counted, not_counted = taken.filter(~withheld), taken.filter(withheld)
    failed = _failure_rewards(recipe, executions, counted)
    is_taken = pl.any_horizontal(pl.lit(False), *map(_takes, takers))
    unheard = evaluations.filter(~is_taken).with_columns(rule="name")
    return pl.concat(
        [
            CONTRIBUTIONS.to_frame(),
            _with_reason(concat_table(REWARDS, counted, failed), None),
            _with_reason(not_counted, "withheld"),
            _with_reason(unheard, "unheard"),
        ]
    )


def _of_withholding(recipe: Recipe, executions: pl.DataFrame) -> pl.Expr:
    """Return whether a row belongs to an execution that withheld spans."""
    withholding = executions.filter(has_withheld_spans(recipe.filter))["execution_id"]
    return pl.col("execution_id").is_in(withholding.implode())


def mark_withheld(
    recipe: Recipe, contributions: pl.DataFrame, executions: pl.DataFrame
) -> pl.DataFrame:
    """Mark the positive contributions to executions that withheld spans; negative ones count.

    Args:
        contributions: `CONTRIBUTIONS` of rules.
    """
    positive = pl.col("reason").is_null() & (pl.col("value") > 0)
    reason = pl.when(_of_withholding(recipe, executions) & positive).then(pl.lit("withheld"))
    return contributions.with_columns(reason=reason.otherwise("reason"))


def _with_reason(evaluated: pl.DataFrame, reason: str | None) -> pl.DataFrame:
    """Return rewards of evaluations as `CONTRIBUTIONS`; without a reason they count."""
    reasons = pl.lit(reason, pl.String).alias("reason"), pl.lit(None, pl.String).alias("error")
    return evaluated.with_columns(reasons).select(CONTRIBUTIONS.names())


def _gated_contributions(
    recipe: Recipe, rewards: pl.DataFrame, executions: pl.DataFrame
) -> pl.DataFrame:
    """Return `rewards` and those of rules over executions, with a reason where a gate is shut."""
    rollout_rules = [rule for rule in recipe.reward if rule.on == "rollout"]
    gated_rules = [rule for rule in recipe.reward if rule.gate is not None]
    stats = with_group_stats(recipe, rewards, executions)
    results = pl.concat([CONTRIBUTIONS.to_frame(), *from_rollout_rules(rollout_rules, stats)])
    marked = mark_withheld(recipe, results, executions)
    left_out = pl.col("reason").is_not_null()
    counted = REWARDS.select(marked.filter(~left_out).lazy()).collect()
    gated = mark_gated(gated_rules, concat_table(REWARDS, rewards, counted), stats)
    names = CONTRIBUTIONS.names()
    with_error = gated.with_columns(error=pl.lit(None, pl.String))
    return pl.concat([with_error.select(names), marked.filter(left_out).select(names)])


def with_group_stats(
    recipe: Recipe, rewards: pl.DataFrame, executions: pl.DataFrame
) -> pl.DataFrame:
    """Return the executions with `GROUP_STATS`, from the rewards of rules that have no gate."""
    gated = [rule.name for rule in recipe.reward if rule.gate is not None]
    ungated = rewards.filter(~pl.col("rule").is_in(gated))
    return group_stats(executions, outcomes(recipe, ungated, executions))


def split_contributions(contributions: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Split `CONTRIBUTIONS` into `REWARDS` and `DROPS`: those with a reason do not count."""
    counts = pl.col("reason").is_null()
    counted, left_out = contributions.filter(counts), contributions.filter(~counts)
    sentence = pl.col("reason").replace_strict(REASONS, return_dtype=pl.String)
    drops = left_out.select(
        stage=pl.lit("rewards"),
        id="evidence",
        reason="reason",
        detail=pl.concat_str("rule", sentence, "error", separator=": ", ignore_nulls=True),
    )
    return REWARDS.select(counted.lazy()).collect(), DROPS.select(drops.lazy()).collect()


def outcomes(recipe: Recipe, rewards: pl.DataFrame, executions: pl.DataFrame) -> pl.DataFrame:
    """Return `execution_id` and `reward`: the sum of the rewards to the execution as a whole.

    Where the recipe names evaluations, an execution without any of them has no outcome.
    """
    of_execution = rewards.filter(pl.col("call_id").is_null())
    sums = of_execution.group_by("execution_id").agg(reward=pl.col("value").sum())
    evaluated = of_execution.filter(pl.col("source") != "rule")["execution_id"].unique()
    ids = executions.select("execution_id")
    if any(reward.evaluation for reward in recipe.reward):
        ids = ids.filter(pl.col("execution_id").is_in(evaluated.implode()))
    joined = ids.join(sums, "execution_id", "left", maintain_order="left")
    return joined.with_columns(pl.col("reward").fill_null(0.0))


def _takes(reward: Reward) -> pl.Expr:
    """Return whether a reward takes an evaluation, by its name and source."""
    named = pl.col("name") == reward.evaluation
    return named if reward.from_ == "any" else named & (pl.col("source") == reward.from_)


def _evaluation_rewards(reward: Reward, evaluations: pl.DataFrame) -> pl.DataFrame:
    rows = evaluations.filter(_takes(reward)).with_columns(
        rule=pl.lit(reward.name),
        value=pl.col("value").clip(reward.min, reward.max) * reward.weight,
    )
    return REWARDS.select(rows.lazy()).collect()


def _failure_rewards(
    recipe: Recipe, executions: pl.DataFrame, evaluated: pl.DataFrame
) -> pl.DataFrame:
    """Return the reward `filter.failed` of executions that failed and that no evaluation judges."""
    takers = [reward for reward in recipe.reward if reward.evaluation]
    if not takers or not isinstance(recipe.filter.failed, FailedCounts):
        return REWARDS.empty()
    first = next((reward for reward in takers if reward.gate is None), takers[0])
    judged = evaluated.filter(pl.col("call_id").is_null())["execution_id"]
    failed = executions.filter(
        pl.col("outcome").is_in(["error", "timeout"]) | has_withheld_spans(recipe.filter),
        ~pl.col("execution_id").is_in(judged.implode()),
    ).with_columns(
        call_id=pl.lit(None),
        rule=pl.lit(first.name),
        source=pl.lit("recipe"),
        value=recipe.filter.failed.reward * first.weight,
        evidence=pl.col("source_spans").list.last(),
    )
    return REWARDS.select(failed.lazy()).collect()
