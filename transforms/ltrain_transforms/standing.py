"""How each execution stands beside its group and by its outcome, for rules and gates that ask.

A group's median is over the executions that are not superseded and ended by themselves: ok, error
or timeout. `reward` is the outcome before any of these rules and gates, so that none depends on
another.
"""

from collections.abc import Sequence

import polars as pl

from ltrain_transforms import sql
from ltrain_transforms.contributions import CONTRIBUTIONS, fault
from ltrain_transforms.recipe import Reward
from ltrain_transforms.selection import COUNTING
from ltrain_transforms.tables import GROUP_STATS


def standing(executions: pl.DataFrame, outcomes: pl.DataFrame) -> pl.DataFrame:
    """Add to `executions` the columns of `STANDING`; the group's are null where there is none.

    Args:
        outcomes: `execution_id` and `reward` of those that have an outcome.
    """
    joined = executions.join(outcomes, "execution_id", "left", maintain_order="left")
    counts = ~pl.col("superseded") & pl.col("outcome").is_in(COUNTING).fill_null(False)

    def of_group(one: pl.Expr) -> pl.Expr:
        return pl.when(pl.col("group_id").is_not_null()).then(one.over("group_id"))

    members = {name: pl.col(name).filter(counts) for name in ("reward", "wall", "critical_path")}
    beside = joined.with_columns(
        group_size=of_group(counts.sum()),
        group_reward=of_group(members["reward"].mean()),
        group_wall=of_group(members["wall"].median()),
        group_critical_path=of_group(members["critical_path"].median()),
    )
    return beside.with_columns(
        pl.col(name).cast(dtype) for name, dtype in GROUP_STATS.schema.items()
    )


def of_rollouts(rules: Sequence[Reward], known: pl.DataFrame) -> list[pl.DataFrame]:
    """Give the `CONTRIBUTIONS` of each rule over executions; `known` are those of `standing`."""
    return [_of_rollouts(rule, known) for rule in rules]


def _of_rollouts(rule: Reward, known: pl.DataFrame) -> pl.DataFrame:
    rows = known.with_columns(**sql.with_names(rule.name, known.schema, rule.let))
    held = sql.fired(rows, rule.bound(rule.when), rule.bound(str(rule.value)))
    made = held.with_columns(
        reason=fault(),
        error=pl.lit(None, pl.String),
        call_id=pl.lit(None, pl.String),
        rule=pl.lit(rule.name),
        source=pl.lit("rule"),
        value=pl.col("value").clip(rule.min, rule.max) * rule.weight,
        evidence=pl.coalesce(pl.col("source_spans").list.last(), "execution_id"),
    )
    return made.select(pl.col(name).cast(dtype) for name, dtype in CONTRIBUTIONS.items())


def gated(rules: Sequence[Reward], rewards: pl.DataFrame, known: pl.DataFrame) -> pl.DataFrame:
    """Add `reason` to `rewards`: `gated` where the gate of their rule does not hold."""
    open_for = [
        known.select("execution_id", rule=pl.lit(rule.name), open=_open(rule, known))
        for rule in rules
    ]
    names = [rule.name for rule in rules]
    empty = pl.DataFrame(schema={"execution_id": pl.String, "rule": pl.String, "open": pl.Boolean})
    joined = rewards.join(
        pl.concat([empty, *open_for]), ["execution_id", "rule"], "left", maintain_order="left"
    )
    shut = pl.col("rule").is_in(names) & ~pl.col("open").fill_null(False)
    return joined.with_columns(reason=pl.when(shut).then(pl.lit("gated"))).drop("open")


def _open(rule: Reward, known: pl.DataFrame) -> pl.Series:
    text = rule.bound(str(rule.gate))
    held = sql.fired(known, text, "1")["execution_id"]
    return known["execution_id"].is_in(held.implode())
