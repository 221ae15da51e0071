"""Rollouts and tasks of a wave's dataset that show what an alarm is about."""

from dataclasses import replace

import polars as pl

from ltrain_transforms.alarms.alarm import Alarm
from ltrain_transforms.alarms.figures import (
    Scan,
    drops_by_execution,
    policy_tokens,
    rollouts_with,
)

EXAMPLES = 5
"""Most rollouts, and most tasks, of an alarm."""
ONE_SCORE_EXAMPLES = 3
"""Rollouts of an alarm about one outcome: what is common to three is what is rewarded."""


def with_examples(alarm: Alarm, scan: Scan) -> Alarm:
    """Return the alarm with rollouts or tasks to read, from the dataset of its wave."""
    match alarm.name:
        case "divergence":
            found = _by_reward(scan, pl.col("rule") == alarm.subject, descending=True)
        case "one_score":
            found = rollouts_with(scan, float(alarm.subject)).head(ONE_SCORE_EXAMPLES)
        case "no_spread":
            return replace(alarm, tasks=_flat_tasks(scan))
        case "few_answers":
            found = _commonest_answer(scan)
        case "length_drift":
            found = _by_length(scan, descending=alarm.subject == "longer")
        case "silent_tool":
            found = _by_reward(scan, pl.col("source") != "rule", descending=False)
        case "drops" | "selective_drops" | "stale":
            drops = drops_by_execution(scan("calls"), scan("drops"))
            of_reason = drops.filter(pl.col("reason") == alarm.subject)
            found = of_reason.select("execution_id").sort("execution_id")
        case _:
            return alarm
    return replace(alarm, rollouts=_names(scan, found))


def _names(scan: Scan, found: pl.LazyFrame) -> tuple[str, ...]:
    """Return the rollouts of the first executions of a frame with `execution_id`.

    Drops may name other things; they are left out.
    """
    name = pl.coalesce("rollout_id", "execution_id")
    executions = scan("executions").select("execution_id", name=name)
    named = found.join(executions, "execution_id", maintain_order="left").select("name")
    return tuple(named.unique(maintain_order=True).head(EXAMPLES).collect()["name"])


def _by_reward(scan: Scan, condition: pl.Expr, *, descending: bool) -> pl.LazyFrame:
    """Return the executions by what the rewards that fulfil a condition gave them."""
    sums = scan("rewards").filter(condition).group_by("execution_id").agg(pl.col("value").sum())
    order = sums.sort("value", "execution_id", descending=[descending, False])
    return order.select("execution_id")


def _flat_tasks(scan: Scan) -> tuple[str, ...]:
    flat = scan("drops").filter(pl.col("stage") == "groups", pl.col("reason") == "no_spread")
    ids = flat.select(execution_id="id")
    tasks = scan("executions").join(ids, "execution_id", "semi").select("task_id").drop_nulls()
    return tuple(tasks.unique().sort("task_id").head(EXAMPLES).collect()["task_id"])


def _commonest_answer(scan: Scan) -> pl.LazyFrame:
    results = scan("executions").filter(pl.col("result").is_not_null())
    counted = results.select("execution_id", "result", count=pl.len().over("result"))
    return counted.sort("count", "result", "execution_id", descending=[True, False, False]).select(
        "execution_id"
    )


def _by_length(scan: Scan, *, descending: bool) -> pl.LazyFrame:
    sums = policy_tokens(scan).group_by("execution_id").agg(pl.col("tokens").sum())
    order = sums.sort("tokens", "execution_id", descending=[descending, False])
    return order.select("execution_id")
