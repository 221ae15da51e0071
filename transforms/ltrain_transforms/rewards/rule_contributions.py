"""Rules over calls -> contributions: the credited call, the value, and the call that caused it.

A potential Phi contributes its differences: gamma * Phi(s') - Phi(s) for the step from s to s', and
gamma * final_potential - Phi(s) at the end. Over an execution they telescope to
gamma^T * final_potential - initial_potential. Where `final_potential` is 0, no policy can change
that sum, so the optimal policy stays the same (Ng, Harada, Russell, ICML 1999; for episodes Grzes,
AAMAS 2017). A step is an LLM call; gamma is that of the process returns.
"""

from collections.abc import Collection

import polars as pl

from ltrain_instrument.feedback import MAX_SCORE
from ltrain_transforms.recipe import CallReward, Credited, Process, Recipe, Reward
from ltrain_transforms.rewards.rule import CONTRIBUTIONS
from ltrain_transforms.rules import INPUTS, add_derived_columns, add_schema_match, sql
from ltrain_transforms.source import is_trained
from ltrain_transforms.tables import CALLS, RULE_COLUMNS

REASONS = {
    "uncredited": "the rule fired, and there is no call that it credits",
    "null_value": "the rule fired, and its value is null",
    "infinite_value": "the rule fired, and its value is NaN, infinite or beyond 1e100",
    "rule_failed": "the rule raised on the execution, or returned no frame of contributions",
}

KEYS = ("execution_id", "call_id", "seq", "kind")
RESULTS = ("execution_id", "seq", "call_id", "value", "evidence", "reason", "error")

CREDITED_CALL = {
    Credited.SELF: pl.col("call_id"),
    Credited.REQUESTER: pl.col("requested_by"),
    Credited.PREVIOUS: pl.col("previous_trained"),
    Credited.LAST: pl.col("last_trained"),
    Credited.ROLLOUT: pl.lit(None, pl.String),
}


def discount_factor(process: Process) -> float:
    """Return the discount of the process returns, which a potential must share."""
    return process.gamma if process.returns == "discounted" else 1.0


def sql_inputs(recipe: Recipe, calls: pl.DataFrame) -> pl.DataFrame:
    """Return the calls in order, with the columns that the recipe's SQL names and those it credits.

    The columns that credit needs: `previous_trained`, `last_trained` (ids of trained calls), `turn`
    (the number of LLM calls so far) and `last_turn` (that of the last trained call).
    """
    rules = [reward for reward in recipe.reward if isinstance(reward, CallReward)]
    named = named_columns(rules).intersection(RULE_COLUMNS)
    needed = {column for name in named for column in INPUTS.get(name, (name,))}
    columns = [name for name in CALLS.schema if name in {*KEYS, "requested_by", *needed}]
    within = "execution_id"
    ordered = (
        calls.select(*columns, trained=pl.when(is_trained(*recipe.policy)).then("call_id"))
        .sort(within, "seq")
        .with_columns(
            previous_trained=pl.col("trained").forward_fill().shift(1).over(within),
            last_trained=pl.col("trained").drop_nulls().last().over(within),
            turn=(pl.col("kind") == "llm").cast(pl.Int64).cum_sum().over(within),
        )
        .with_columns(
            last_turn=pl.when(pl.col("trained").is_not_null()).then("turn").max().over(within)
        )
    )
    return add_derived_columns(ordered, named)


def named_columns(rules: Collection[Reward]) -> set[str]:
    """Return the columns that the SQL of rules names, and the names of `let`."""
    texts = (rule.bound(text) for rule in rules for text in (rule.when, str(rule.value)))
    sources = {path.split(":", 1)[0] for rule in rules for path in rule.let.values()}
    return sql.column_names(*texts) | sources


def rule_contributions(rule: Reward, results: pl.DataFrame, discount: float) -> pl.DataFrame:
    """Return the `CONTRIBUTIONS` of one rule from its results on calls.

    Args:
        results: the columns `RESULTS` without the reason, and `credits`: whether there is
            something that the result credits.
        discount: gamma a turn, for a potential.
    """
    marked = results.with_columns(
        reason=pl.when(pl.col("error").is_not_null()).then(pl.lit("rule_failed"))
        .when(~pl.col("credits")).then(pl.lit("uncredited"))
        .otherwise(invalid_value())
    )  # fmt: skip
    counts = pl.col("reason").is_null()
    counted, others = marked.filter(counts), marked.filter(~counts)
    if rule.potential:
        counted = _potential_differences(rule, counted, discount)
    else:
        counted = clip_sums(rule, counted)
    value = pl.col("value") * rule.weight
    named = pl.concat([counted.select(RESULTS), others.select(RESULTS)]).with_columns(
        rule=pl.lit(rule.name),
        source=pl.lit("rule"),
        value=pl.when(value == 0).then(0.0).otherwise(value),  # 0 - 0 may be -0.0 in a SIMD lane
    )
    ordered = named.sort("execution_id", "seq", maintain_order=True)
    return ordered.select(pl.col(name).cast(dtype) for name, dtype in CONTRIBUTIONS.items())


def invalid_value() -> pl.Expr:
    """Return the reason why the number in `value` cannot count; null where it can."""
    value = pl.col("value")
    return (
        pl.when(value.is_null()).then(pl.lit("null_value"))
        .when(~(value.abs() <= MAX_SCORE)).then(pl.lit("infinite_value"))
    )  # fmt: skip


def clip_sums(rule: Reward, counted: pl.DataFrame) -> pl.DataFrame:
    """Clip the running sum of each execution, in call order, to the rule's `min` and `max`."""
    total = pl.col("value").cum_sum().clip(rule.min, rule.max)
    clipped = (total - total.shift(1, fill_value=0.0)).over("execution_id", order_by="seq")
    unbounded = rule.min is None and rule.max is None
    return counted if unbounded else counted.with_columns(value=clipped)


def run_sql(rule: CallReward, calls: pl.DataFrame) -> pl.DataFrame:
    """Return the results of a rule on calls, for `rule_contributions`."""
    rows = calls.filter(pl.col("kind") == rule.on)
    if rule.schema_ is not None:
        rows = add_schema_match(rows, rule.schema_)
    rows = rows.with_columns(**sql.json_path_columns(rule.name, rows.schema, rule.let))
    matches = sql.evaluate_rule(rows, rule.bound(rule.when), rule.bound(str(rule.value)))
    return credit_matches(rule, matches.with_columns(evidence="call_id"), calls)


def credit_matches(rule: Reward, matches: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Return the results of a rule, which credit a call of `calls` or the execution.

    Args:
        matches: rows of `calls` with `value` and `evidence`.
    """
    turns = calls.select("execution_id", credited="call_id", credited_turn="turn")
    credits_execution = rule.credit_to == Credited.ROLLOUT
    return (
        matches.with_columns(
            credited=CREDITED_CALL[rule.credit_to],
            error=pl.lit(None, pl.String),
        )
        .join(turns, ["execution_id", "credited"], "left", maintain_order="left")
        .with_columns(
            call_id="credited",
            turn="credited_turn",
            credits=pl.lit(credits_execution) | pl.col("credited").is_not_null(),
        )
        .select(*KEYS[:3], "turn", "last_turn", "last_trained", *RESULTS[3:5], "credits", "error")
    )


def _potential_differences(rule: Reward, potentials: pl.DataFrame, discount: float) -> pl.DataFrame:
    """Turn potentials into their differences: one a call, and one for the end of an execution."""
    within, value, turn = "execution_id", pl.col("value"), pl.col("turn")
    ordered = potentials.sort(within, "seq").with_columns(
        previous=value.shift(1, fill_value=rule.initial_potential).over(within),
        next_turn=turn.shift(-1).over(within),
    )
    steps = ordered.select(pl.coalesce("next_turn", "last_turn", "turn") - turn).to_series()
    factor = pl.Series([discount**step for step in steps], dtype=pl.Float64)
    inner = ordered.with_columns(value=factor * ordered["value"] - ordered["previous"])
    ends = ordered.filter(pl.col("next_turn").is_null()).with_columns(
        value=discount * rule.final_potential - value,
        call_id=pl.coalesce("last_trained", "call_id"),
    )
    return pl.concat([inner, ends])
