"""Statistics of each execution's group, and the gates over executions that read them.

A group's statistics are over those of its executions that are not superseded and ended by
themselves: ok, error or timeout. `reward` is the outcome before rules over the rollout and gates,
so that none of these depends on another.
"""

from collections.abc import Sequence

import polars as pl

from ltrain_transforms.recipe import Reward
from ltrain_transforms.rules import sql
from ltrain_transforms.source import AGENT_OUTCOMES
from ltrain_transforms.tables import GROUP_STATS


def group_stats(executions: pl.DataFrame, outcomes: pl.DataFrame) -> pl.DataFrame:
    """Add the columns of `GROUP_STATS` to `executions`; without a group, its columns are null.

    Args:
        outcomes: `execution_id` and `reward` of the executions that have an outcome.
    """
    joined = executions.join(outcomes, "execution_id", "left", maintain_order="left")
    counts = ~pl.col("superseded") & pl.col("outcome").is_in(AGENT_OUTCOMES).fill_null(False)

    def over_group(statistic: pl.Expr) -> pl.Expr:
        return pl.when(pl.col("group_id").is_not_null()).then(statistic.over("group_id"))

    members = {name: pl.col(name).filter(counts) for name in ("reward", "wall", "critical_path")}
    stats = joined.with_columns(
        group_size=over_group(counts.sum()),
        group_reward=over_group(members["reward"].mean()),
        group_wall=over_group(members["wall"].median()),
        group_critical_path=over_group(members["critical_path"].median()),
    )
    return stats.with_columns(
        pl.col(name).cast(dtype) for name, dtype in GROUP_STATS.schema.items()
    )


def mark_gated(rules: Sequence[Reward], rewards: pl.DataFrame, stats: pl.DataFrame) -> pl.DataFrame:
    """Add `reason` to `rewards`: `gated` where the gate of their rule does not hold, else null.

    Args:
        rules: those that have a gate.
        stats: executions with `group_stats`.
    """
    gates = [
        stats.select("execution_id", rule=pl.lit(rule.name), open=_gate_holds(rule, stats))
        for rule in rules
    ]
    names = [rule.name for rule in rules]
    empty = pl.DataFrame(schema={"execution_id": pl.String, "rule": pl.String, "open": pl.Boolean})
    joined = rewards.join(
        pl.concat([empty, *gates]), ["execution_id", "rule"], "left", maintain_order="left"
    )
    shut = pl.col("rule").is_in(names) & ~pl.col("open").fill_null(False)
    return joined.with_columns(reason=pl.when(shut).then(pl.lit("gated"))).drop("open")


def _gate_holds(rule: Reward, stats: pl.DataFrame) -> pl.Series:
    open_ids = sql.evaluate_rule(stats, rule.bound(str(rule.gate)), "1")["execution_id"]
    return stats["execution_id"].is_in(open_ids.implode())
