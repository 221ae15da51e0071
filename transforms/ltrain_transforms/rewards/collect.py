"""Evaluations and rules -> rewards: each contribution, with the span that caused it.

AIR: signals in a trace become intermediate rewards (Agent Lightning, section 3.4.2). `rewards` runs
evaluations and the rules over calls, which read one execution at a time. `apply_gates` runs the
rules over executions and the gates, which read the group and the outcome and therefore need all
executions of a wave.
"""

import polars as pl

from ltrain_transforms.recipe import FailedCounts, Recipe
from ltrain_transforms.rewards.evaluations import FAULTS
from ltrain_transforms.rewards.group_stats import group_stats, mark_gated
from ltrain_transforms.rewards.kinds import rules_of
from ltrain_transforms.rewards.rule import CONTRIBUTIONS, Reads, RuleInputs
from ltrain_transforms.rewards.rule_contributions import REASONS as RULE_REASONS
from ltrain_transforms.rewards.rule_contributions import discount_factor, sql_inputs
from ltrain_transforms.rewards.signals import REASONS as SIGNAL_REASONS
from ltrain_transforms.rewards.signals import read_signals
from ltrain_transforms.source import concat_table, has_withheld_spans
from ltrain_transforms.tables import DROPS, REWARDS

REASONS = {
    **FAULTS,
    **RULE_REASONS,
    **SIGNAL_REASONS,
    "unheard": "no reward of the recipe takes this evaluation from this source, or the runner's "
    "own takes its place",
    "withheld": "spans are missing that the execution's agent ended, so that it counts as failed "
    "and gets filter.failed instead; filter.allow = ['incomplete'] lets evaluations and rules "
    "count",
    "gated": "the rule fired, and its gate does not hold for the execution",
}


def rewards(recipe: Recipe, inputs: RuleInputs) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the `REWARDS` of single executions, and the other contributions as `DROPS`.

    Rules over executions and gates are left to `apply_gates`.
    """
    counted, drops = split_contributions(execution_contributions(recipe, inputs))
    return counted, concat_table(DROPS, drops, inputs.ambiguous)


def apply_gates(
    recipe: Recipe, rewards: pl.DataFrame, executions: pl.DataFrame
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Add the rewards of rules over executions, and remove the rewards whose gate does not hold.

    Args:
        rewards: what `rewards` returned for all executions of the wave.

    Returns:
        The `REWARDS` that count, and the other contributions as `DROPS`.
    """
    if not rules_of(recipe, Reads.GROUP) and all(rule.gate is None for rule in recipe.reward):
        return rewards, DROPS.empty()
    return split_contributions(_gated_contributions(recipe, rewards, executions))


def rule_inputs(
    recipe: Recipe,
    spans: pl.DataFrame,
    calls: pl.DataFrame,
    executions: pl.DataFrame,
    evaluations: pl.DataFrame,
) -> RuleInputs:
    """Return what rewards read of single executions.

    Args:
        spans: their `SPANS`, for rules on signals.
    """
    over_calls = rules_of(recipe, Reads.CALLS)
    signals, ambiguous = read_signals(recipe, spans, calls)
    return RuleInputs(
        executions=executions,
        calls=calls,
        sql_calls=sql_inputs(recipe, calls) if over_calls else calls,
        signals=signals,
        ambiguous=ambiguous,
        evaluations=evaluations,
        discount=discount_factor(recipe.credit.process),
    )


def execution_contributions(recipe: Recipe, inputs: RuleInputs) -> pl.DataFrame:
    """Return the `CONTRIBUTIONS` of evaluations and of rules over calls."""
    from_rules = (
        mark_withheld(recipe, rule.contribute(inputs), inputs.executions)
        for rule in rules_of(recipe, Reads.CALLS)
    )
    return pl.concat([from_evaluations(recipe, inputs), *from_rules])


def group_contributions(recipe: Recipe, stats: pl.DataFrame) -> pl.DataFrame:
    """Return the `CONTRIBUTIONS` of rules over executions, which have `GROUP_STATS`."""
    inputs = RuleInputs(executions=stats)
    results = [rule.contribute(inputs) for rule in rules_of(recipe, Reads.GROUP)]
    return mark_withheld(recipe, pl.concat([CONTRIBUTIONS.to_frame(), *results]), stats)


def from_evaluations(recipe: Recipe, inputs: RuleInputs) -> pl.DataFrame:
    """Return the `CONTRIBUTIONS` of evaluations, and of `filter.failed` where none judges."""
    rules, executions = rules_of(recipe, Reads.EVALUATIONS), inputs.executions
    results = [rule.contribute(inputs) for rule in rules]
    taken = pl.concat([CONTRIBUTIONS.to_frame(), *results])
    withheld = _of_withholding(recipe, executions)
    counted, not_counted = taken.filter(~withheld), taken.filter(withheld)
    failed = _failure_rewards(recipe, executions, counted)
    is_taken = pl.any_horizontal(pl.lit(False), *(rule.takes() for rule in rules))
    unheard = inputs.evaluations.filter(~is_taken).with_columns(rule="name")
    return pl.concat(
        [
            counted,
            _with_reason(failed, None),
            _with_reason(not_counted, "withheld"),
            _with_reason(unheard, "unheard"),
        ]
    )


def is_judged(recipe: Recipe) -> bool:
    """Return whether evaluations decide which executions have an outcome."""
    return bool(rules_of(recipe, Reads.EVALUATIONS))


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
    """Return rewards as `CONTRIBUTIONS`; without a reason they count."""
    reasons = pl.lit(reason, pl.String).alias("reason"), pl.lit(None, pl.String).alias("error")
    return evaluated.with_columns(reasons).select(CONTRIBUTIONS.names())


def _gated_contributions(
    recipe: Recipe, rewards: pl.DataFrame, executions: pl.DataFrame
) -> pl.DataFrame:
    """Return `rewards` and those of rules over executions, with a reason where a gate is shut."""
    gated_rules = [rule for rule in recipe.reward if rule.gate is not None]
    stats = with_group_stats(recipe, rewards, executions)
    marked = group_contributions(recipe, stats)
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
    ids = executions.select("execution_id")
    if is_judged(recipe):
        ids = ids.filter(pl.col("execution_id").is_in(_judged_executions(rewards).implode()))
    joined = ids.join(sums, "execution_id", "left", maintain_order="left")
    return joined.with_columns(pl.col("reward").fill_null(0.0))


def _judged_executions(rewards: pl.DataFrame) -> pl.Series:
    """Return the ids of the executions that an evaluation judges as a whole.

    If the evaluations of all executions judge calls, then one of a call is enough.
    """
    evaluated = rewards.filter(pl.col("source") != "rule")
    of_execution = evaluated.filter(pl.col("call_id").is_null())
    only_failed = (of_execution["source"] == "recipe").all()
    return (evaluated if only_failed else of_execution)["execution_id"].unique()


def _failure_rewards(
    recipe: Recipe, executions: pl.DataFrame, evaluated: pl.DataFrame
) -> pl.DataFrame:
    """Return the reward `filter.failed` of executions that failed and that no evaluation judges."""
    takers = [rule.reward for rule in rules_of(recipe, Reads.EVALUATIONS)]
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
