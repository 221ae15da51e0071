"""Sums of what rules give on batches of executions, in few enough columns to keep all of them."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import polars as pl

from ltrain_collector.store import Store
from ltrain_transforms.datasets import ParsedSpans, Progress, parse_spans
from ltrain_transforms.recipe import Recipe
from ltrain_transforms.rewards import (
    CONTRIBUTIONS,
    NullPredicates,
    RuleInputs,
    execution_contributions,
    group_contributions,
    mark_gated,
    rule_inputs,
    rules_of,
    split_contributions,
    with_group_stats,
)
from ltrain_transforms.source import (
    Selection,
    explain_query_errors,
    plan_batches,
    read_spans,
    watermark,
)
from ltrain_transforms.tables import EXECUTIONS

SUMS = pl.Schema(
    {
        "execution_id": pl.String(),
        "rule": pl.String(),
        "reason": pl.String(),
        "count": pl.Int64(),
        "value": pl.Float64(),
    }
)
"""One rule on one execution: the count of `CONTRIBUTIONS` with a reason, and their sum."""

OUTCOME_COLUMNS = ("execution_id", "call_id", "rule", "source", "value")
"""The columns that determine the outcome of an execution."""


@dataclass(slots=True)
class RuleStatistics:
    """Sums over the executions that were added so far."""

    recipe: Recipe
    executions: pl.DataFrame = field(default_factory=EXECUTIONS.empty)
    sums: pl.DataFrame = field(default_factory=SUMS.to_frame)
    outcome_rows: pl.DataFrame = field(
        default_factory=lambda: CONTRIBUTIONS.to_frame().select(OUTCOME_COLUMNS)
    )
    kinds: Counter[str] = field(default_factory=Counter)
    """Count of calls by kind."""
    signals: int = 0
    ambiguous: int = 0
    """Count of log records of no span that several calls may have written."""
    evaluations: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Count of evaluations by name and source."""
    fired: set[str] = field(default_factory=set)
    """Rules that made a contribution, even if it does not count."""
    null_predicates: dict[str, NullPredicates] = field(default_factory=dict)
    """By name of a rule, until the rule makes its first contribution."""

    def add(self, spans: pl.DataFrame, newest: int | None) -> ParsedSpans:
        """Add `SPANS` of whole executions, and return their content.

        Args:
            newest: as in `parse_spans`.
        """
        parsed = parse_spans(spans, self.recipe, newest)
        frames = spans, parsed.calls, parsed.executions, parsed.evaluations
        inputs = rule_inputs(self.recipe, *frames)
        contributions = execution_contributions(self.recipe, inputs)
        rewards, _ = split_contributions(contributions)
        own = contributions.filter(pl.col("reason").ne_missing("unheard"))
        narrow = parsed.executions.with_columns(pl.col("source_spans").list.tail(1))
        self.executions = pl.concat([self.executions, narrow])
        self.sums = pl.concat([self.sums, sum_contributions(own)])
        outcome_rows = rewards.filter(pl.col("call_id").is_null())
        self.outcome_rows = pl.concat([self.outcome_rows, outcome_rows.select(OUTCOME_COLUMNS)])
        self.kinds.update(parsed.calls["kind"])
        self.signals += inputs.signals.height
        self.ambiguous += inputs.ambiguous.height
        self.evaluations.update(parsed.evaluations.select("name", "source").iter_rows())
        self.fired |= set(own["rule"])
        self._count_nulls(inputs)
        return parsed

    def _count_nulls(self, inputs: RuleInputs) -> None:
        """Count null predicates of the rules that have not made a contribution."""
        for rule in rules_of(self.recipe):
            name = rule.reward.name
            if name not in self.fired:
                rule.add_nulls(inputs, self.null_predicates.setdefault(name, NullPredicates()))

    def finish(self) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Return executions with `GROUP_STATS`, and `SUMS` after rules over rollouts and gates."""
        gates = [rule for rule in self.recipe.reward if rule.gate is not None]
        executions = with_group_stats(
            self.recipe, self.outcome_rows, self.executions.sort("execution_id")
        )
        rollout_sums = sum_contributions(group_contributions(self.recipe, executions))
        sums = pl.concat([self.sums, rollout_sums])
        counts = pl.col("reason").is_null()
        passed = mark_gated(gates, sums.filter(counts), executions).select(SUMS.names())
        every = pl.concat([passed, sums.filter(~counts)])
        return executions, every.sort("execution_id", maintain_order=True)


def read_batches(
    store: Store,
    recipe: Recipe,
    selection: Selection,
    spans_a_batch: int,
    progress: Progress,
) -> Iterator[tuple[pl.DataFrame, int | None]]:
    """Yield the `SPANS` of each batch, and the end of the newest of all selected spans."""
    with explain_query_errors(store, recipe.source, selection):
        _, newest = watermark(store, recipe.source, selection)
        batches = plan_batches(store, recipe.source, selection, spans_a_batch)
    for done, batch in enumerate(batches, 1):
        spans, _ = read_spans(store, recipe.source, selection, batch, recipe.metrics)
        yield spans, newest
        progress("trace", done, len(batches))


def sum_contributions(contributions: pl.DataFrame) -> pl.DataFrame:
    """Sum `CONTRIBUTIONS` to `SUMS`."""
    groups = contributions.group_by("execution_id", "rule", "reason", maintain_order=True)
    sums = groups.agg(pl.len().alias("count"), pl.col("value").sum())
    return sums.select(pl.col(name).cast(dtype) for name, dtype in SUMS.items())
