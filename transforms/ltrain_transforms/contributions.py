"""A rule over calls -> contributions: which call gets how much, and by which call's evidence.

A potential Phi gives its differences: gamma * Phi(s') - Phi(s) for the step from s to s', and at
the end gamma * final_potential - Phi(s). Over an execution they telescope to
gamma^T * final_potential - initial_potential, which no policy can change where `final_potential`
is 0, so the optimum stays where it is (Ng, Harada, Russell, ICML 1999; for episodes Grzes, AAMAS
2017). A step is an LLM call, gamma that of the process returns.
"""

import polars as pl

from ltrain_transforms import python_rules, sql
from ltrain_transforms.recipe import Credited, Process, Recipe, Reward
from ltrain_transforms.selection import trained
from ltrain_transforms.signals import READS, with_fit, with_signals
from ltrain_transforms.tables import CALLS, SIGNALS

CONTRIBUTIONS = pl.Schema(
    {
        "execution_id": pl.String(),
        "call_id": pl.String(),
        "rule": pl.String(),
        "source": pl.String(),
        "value": pl.Float64(),
        "evidence": pl.String(),
        "reason": pl.String(),
        "error": pl.String(),
    }
)
"""`REWARDS`, why a contribution does not count, null where it does, and what a rule raised."""

REASONS = {
    "uncredited": "the rule fired, and there is no call that it credits",
    "null_value": "the rule fired, and its value is null",
    "infinite_value": "the rule fired, and its value is NaN or infinite",
    "rule_failed": "the rule raised on the execution, or returned no frame of contributions",
}

KEYS = ("execution_id", "call_id", "seq", "kind")
MADE = ("execution_id", "seq", "call_id", "value", "evidence", "reason", "error")

CREDITED_CALL = {
    Credited.SELF: pl.col("call_id"),
    Credited.REQUESTER: pl.col("requested_by"),
    Credited.PREVIOUS: pl.col("previous_trained"),
    Credited.LAST: pl.col("last_trained"),
    Credited.ROLLOUT: pl.lit(None, pl.String),
}


def of_calls(recipe: Recipe, calls: pl.DataFrame) -> list[pl.DataFrame]:
    """Give the `CONTRIBUTIONS` of each rule over calls, in the recipe's order."""
    rules = [reward for reward in recipe.reward if over_calls(reward)]
    if not rules:
        return []
    seen = looked_at(recipe, calls)
    discount = gamma(recipe.credit.process)
    return [contributions(rule, calls if rule.python else seen, discount) for rule in rules]


def over_calls(reward: Reward) -> bool:
    """Say whether a reward is a rule over calls."""
    return reward.python is not None or (reward.value is not None and reward.on != "rollout")


def gamma(process: Process) -> float:
    """Give the discount of the returns, which a potential must share."""
    return process.gamma if process.returns == "discounted" else 1.0


def looked_at(recipe: Recipe, calls: pl.DataFrame) -> pl.DataFrame:
    """Give the calls in order, with what the recipe's SQL reads of them and whom it may credit."""
    rules = [reward for reward in recipe.reward if over_calls(reward) and not reward.python]
    named: set[str] = set().union(*map(_named, rules))
    needed = {column for name in named for column in READS.get(name, (name,))}
    columns = [name for name in CALLS.schema if name in {*KEYS, "requested_by", *needed}]
    ours = trained(*recipe.policy)
    within = "execution_id"
    ordered = (
        calls.select(*columns, ours=pl.when(ours).then("call_id"))
        .sort(within, "seq")
        .with_columns(
            previous_trained=pl.col("ours").forward_fill().shift(1).over(within),
            last_trained=pl.col("ours").drop_nulls().last().over(within),
            turn=(pl.col("kind") == "llm").cast(pl.Int64).cum_sum().over(within),
        )
        .with_columns(
            last_turn=pl.when(pl.col("ours").is_not_null()).then("turn").max().over(within)
        )
    )
    return with_signals(ordered, named)


def _named(rule: Reward) -> set[str]:
    """Give the columns of `calls` and the ready columns that a rule's SQL names."""
    found = sql.names(rule.bound(rule.when), rule.bound(str(rule.value)))
    paths = {path.split(":", 1)[0] for path in rule.let.values()}
    return {name for name in found | paths if name in CALLS.schema or name in SIGNALS.schema}


def contributions(rule: Reward, calls: pl.DataFrame, discount: float) -> pl.DataFrame:
    """Return the `CONTRIBUTIONS` of one rule; `calls` are those of `looked_at`, or of `CALLS`."""
    held = _of_python(rule, calls) if rule.python else _of_sql(rule, calls)
    marked = held.with_columns(
        reason=pl.when(pl.col("error").is_not_null()).then(pl.lit("rule_failed"))
        .when(~pl.col("placed")).then(pl.lit("uncredited"))
        .otherwise(fault())
    )  # fmt: skip
    counts = pl.col("reason").is_null()
    given, rest = marked.filter(counts), marked.filter(~counts)
    made = _differences(rule, given, discount) if rule.potential else bounded(rule, given)
    value = pl.col("value") * rule.weight
    named = pl.concat([made.select(MADE), rest.select(MADE)]).with_columns(
        rule=pl.lit(rule.name),
        source=pl.lit("rule"),
        value=pl.when(value == 0).then(0.0).otherwise(value),  # 0 - 0 may be -0.0 in a SIMD lane
    )
    ordered = named.sort("execution_id", "seq", maintain_order=True)
    return ordered.select(pl.col(name).cast(dtype) for name, dtype in CONTRIBUTIONS.items())


def fault() -> pl.Expr:
    """Say why the number in `value` cannot count; null where it can."""
    value = pl.col("value")
    return (
        pl.when(value.is_null()).then(pl.lit("null_value"))
        .when(~value.is_finite()).then(pl.lit("infinite_value"))
    )  # fmt: skip


def bounded(rule: Reward, given: pl.DataFrame) -> pl.DataFrame:
    """Hold the sum over each execution within the rule's bounds, in call order."""
    total = pl.col("value").cum_sum().clip(rule.min, rule.max)
    held = (total - total.shift(1, fill_value=0.0)).over("execution_id", order_by="seq")
    unbounded = rule.min is None and rule.max is None
    return given if unbounded else given.with_columns(value=held)


def _of_sql(rule: Reward, calls: pl.DataFrame) -> pl.DataFrame:
    own = calls.filter(pl.col("kind") == rule.on)
    if rule.schema_ is not None:
        own = with_fit(own, rule.schema_)
    names = sql.with_names(rule.name, own.schema, rule.let)
    rows = own.with_columns(**names)
    held = sql.fired(rows, rule.bound(rule.when), rule.bound(str(rule.value)))
    turns = calls.select("execution_id", credited="call_id", of_credited="turn")
    whole = rule.credit_to == Credited.ROLLOUT
    return (
        held.with_columns(
            evidence=pl.col("call_id"),
            credited=CREDITED_CALL[rule.credit_to],
            error=pl.lit(None, pl.String),
        )
        .join(turns, ["execution_id", "credited"], "left", maintain_order="left")
        .with_columns(
            call_id="credited",
            turn="of_credited",
            placed=pl.lit(whole) | pl.col("credited").is_not_null(),
        )
        .select(*KEYS[:3], "turn", "last_turn", "last_trained", *MADE[3:5], "placed", "error")
    )


def _of_python(rule: Reward, calls: pl.DataFrame) -> pl.DataFrame:
    given = python_rules.contributed(
        rule.name, str(rule.python), rule.params, calls.select(CALLS.schema.names())
    )
    return given.with_columns(placed=pl.lit(True))


def _differences(rule: Reward, given: pl.DataFrame, discount: float) -> pl.DataFrame:
    """Turn potentials into their differences, one a call and one for the end of an execution."""
    within, value, turn = "execution_id", pl.col("value"), pl.col("turn")
    ordered = given.sort(within, "seq").with_columns(
        before=value.shift(1, fill_value=rule.initial_potential).over(within),
        after=turn.shift(-1).over(within),
    )
    steps = ordered.select(pl.coalesce("after", "last_turn", "turn") - turn).to_series()
    factor = pl.Series([discount**step for step in steps], dtype=pl.Float64)
    inner = ordered.with_columns(value=factor * ordered["value"] - ordered["before"])
    ends = ordered.filter(pl.col("after").is_null()).with_columns(
        value=discount * rule.final_potential - value,
        call_id=pl.coalesce("last_trained", "call_id"),
    )
    return pl.concat([inner, ends])
