"""A report on the rewards of a recipe: what each of them gives on stored traces.

For each reward it has the count and the sum of its contributions, the correlation of its sum per
execution with the outcome, and the reason if it gives nothing.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import polars as pl
from rich.console import Group, RenderableType
from rich.table import Table as Grid
from rich.text import Text

from ltrain_collector.store import Store
from ltrain_transforms.datasets import Progress, ignore_progress
from ltrain_transforms.recipe import Recipe, Reward
from ltrain_transforms.show.rule_tally import NullPredicates, RuleStatistics
from ltrain_transforms.source import (
    SPANS_PER_BATCH,
    Selection,
    empty_selection,
    explain_query_errors,
    plan_batches,
    read_spans,
    watermark,
)
from ltrain_transforms.tables import FLOAT, INTEGER, STRING, STRINGS, Column, Table

EXAMPLES = 3
"""Rollouts that are listed for each rule: those with the largest sums by absolute value."""

REPORT = Table(
    "rules",
    "One reward of the recipe, on the selected traces.",
    (
        Column("rule", STRING, "The name of the reward."),
        Column("looks_at", STRING, "What it reads: a kind of call, rollout, python or evaluation."),
        Column("seen", INTEGER, "How many of those the traces hold."),
        Column("fired", INTEGER, "How many of its contributions count."),
        Column("executions", INTEGER, "How many executions these are in."),
        Column("total", FLOAT, "The sum of its contributions, after bounds, weight and gate."),
        Column("mean", FLOAT, "The mean of its contributions."),
        Column("correlation", FLOAT, "Of its sum per execution with the reward of evaluations, "
               "from -1 to 1; null if either is constant."),
        Column("left_out", STRING, "Contributions that do not count, by reason, or null."),
        Column("examples", STRINGS, "Rollouts with its largest sums by absolute value."),
        Column("silent", STRING, "Why it gives nothing, or null."),
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class RulesReport:
    rules: pl.DataFrame
    """`REPORT`, in the recipe's order."""
    executions: int
    """Count of all executions."""
    judged: int
    """Count of the executions that an evaluation judges."""


def report_rules(
    store: Store,
    recipe: Recipe,
    selection: Selection,
    *,
    spans_a_batch: int = SPANS_PER_BATCH,
    progress: Progress = ignore_progress,
) -> RulesReport:
    """Apply the rewards of `recipe` to the traces in `store`, with one batch in memory at a time.

    Args:
        spans_a_batch: approximate number of spans in a batch; it does not change the report.

    Raises:
        NothingToBuild: when the recipe's source selects no execution.
    """
    with explain_query_errors(store, recipe.source, selection):
        _, newest = watermark(store, recipe.source, selection)
        batches = plan_batches(store, recipe.source, selection, spans_a_batch)
    statistics = RuleStatistics(recipe)
    for done, batch in enumerate(batches, 1):
        spans, _ = read_spans(store, recipe.source, selection, batch)
        statistics.add(spans, newest)
        progress("trace", done, len(batches))
    if statistics.executions.is_empty():
        raise empty_selection(store, recipe.source, selection)
    return _report(statistics)


@dataclass(frozen=True, slots=True)
class _Results:
    """The results of all batches."""

    statistics: RuleStatistics
    executions: pl.DataFrame
    """With the columns of `GROUP_STATS`."""
    sums: pl.DataFrame
    """`SUMS`, after rules over the rollout and gates."""


def _report(statistics: RuleStatistics) -> RulesReport:
    results = _Results(statistics, *statistics.finish())
    rows = [dict(_row(reward, results)) for reward in statistics.recipe.reward]
    columns = {name: [row[name] for row in rows] for name in REPORT.schema}
    judged = results.executions["reward"].count()
    return RulesReport(pl.DataFrame(columns, REPORT.schema), results.executions.height, judged)


def _row(reward: Reward, results: _Results) -> Iterator[tuple[str, object]]:
    own = results.sums.filter(pl.col("rule") == reward.name)
    counted = own.filter(pl.col("reason").is_null())
    uncounted = own.filter(pl.col("reason").is_not_null())
    inputs = _count_inputs(reward, results)
    fired, total = int(counted["count"].sum()), counted["value"].sum()
    yield "rule", reward.name
    yield "looks_at", _input_kind(reward)
    yield "seen", inputs
    yield "fired", fired
    yield "executions", counted.height
    yield "total", total
    yield "mean", total / fired if fired else None
    sums = counted.select("execution_id", "value")
    joined = results.executions.join(sums, "execution_id", "left", maintain_order="left")
    yield "correlation", _correlation(joined)
    reasons = sorted(uncounted.group_by("reason").agg(pl.col("count").sum()).rows())
    left_out = ", ".join(f"{reason} {count}" for reason, count in reasons) or None
    yield "left_out", left_out
    yield "examples", _examples(joined)
    yield "silent", None if fired else _why_silent(reward, results, inputs, left_out)


def _input_kind(reward: Reward) -> str:
    return "python" if reward.python else "evaluation" if reward.evaluation else str(reward.on)


def _count_inputs(reward: Reward, results: _Results) -> int:
    """Count the calls, executions or evaluations that a reward reads."""
    if reward.evaluation:
        evaluations = results.statistics.evaluations.items()
        return sum(count for (name, _), count in evaluations if name == reward.evaluation)
    if reward.python or reward.on == "rollout":
        return results.executions.height
    return results.statistics.kinds[str(reward.on)]


def _correlation(joined: pl.DataFrame) -> float | None:
    """Return Pearson's correlation over the executions that an evaluation judges."""
    pairs = joined.filter(pl.col("reward").is_not_null()).select(
        "reward", pl.col("value").fill_null(0.0)
    )
    if pairs.height < 2 or any(pairs[name].n_unique() < 2 for name in pairs.columns):
        return None
    return float(pairs.select(pl.corr("reward", "value")).item())


def _examples(joined: pl.DataFrame) -> list[str]:
    rewarded = joined.filter(pl.col("value").is_not_null()).with_columns(
        label=pl.coalesce("rollout_id", "execution_id"), size=pl.col("value").abs()
    )
    ranked = rewarded.sort("size", "label", descending=[True, False])
    return ranked["label"].unique(maintain_order=True).head(EXAMPLES).to_list()


def _why_silent(reward: Reward, results: _Results, inputs: int, left_out: str | None) -> str:
    """Explain why a reward gives nothing."""
    if left_out is not None:
        return f"all its contributions are left out: {left_out}"
    if reward.evaluation:
        return _why_unmatched(reward, results, inputs)
    if reward.python:
        return "the function returns no contribution for any execution"
    if inputs == 0:
        kinds = ", ".join(sorted(results.statistics.kinds)) or "none"
        return f"the traces hold no {reward.on} call; kinds in the traces: {kinds}"
    nulls = _null_predicates(reward, results)
    what = "executions" if reward.on == "rollout" else f"{reward.on} calls"
    summary = f"`when` is true for none of {inputs} {what}"
    if nulls.rows == 0:
        return summary
    columns = ", ".join(nulls.null_columns) or "a value"
    return f"{summary}, and null for {nulls.rows}, which lack {columns}"


def _null_predicates(reward: Reward, results: _Results) -> NullPredicates:
    if reward.on != "rollout":
        return results.statistics.null_predicates[reward.name]
    nulls = NullPredicates()
    nulls.add(reward, results.executions)
    return nulls


def _why_unmatched(reward: Reward, results: _Results, inputs: int) -> str:
    evaluations = results.statistics.evaluations
    if inputs:
        sources = ", ".join(
            sorted(source for name, source in evaluations if name == reward.evaluation)
        )
        return (
            f"evaluations named '{reward.evaluation}' come from {sources} only, "
            f"and from is '{reward.from_}'"
        )
    names = ", ".join(sorted({name for name, _ in evaluations})) or "none"
    return f"no evaluation is named '{reward.evaluation}'; names in the traces: {names}"


_SHOWN_COLUMNS = (
    "rule",
    "looks at",
    "seen",
    "fired",
    "executions",
    "total",
    "mean",
    "r",
    "examples",
)
_ID_PREFIX = 12
"""Characters of a rollout id that are shown; `ltrain show` accepts such a prefix."""

_NUMERIC_COLUMNS = ("seen", "fired", "executions", "total", "mean", "r")


def render_report(report: RulesReport) -> RenderableType:
    """Render a table of the rules, then what they leave out and which rules give nothing."""
    head = Text(f"{report.executions} executions, {report.judged} of them judged", "bold")
    table = Grid(box=None, padding=(0, 1, 0, 0))
    for name in _SHOWN_COLUMNS:
        table.add_column(
            name, justify="right" if name in _NUMERIC_COLUMNS else "left", overflow="fold"
        )
    rows = report.rules.to_dicts()
    for row in rows:
        table.add_row(*_table_cells(row))
    notes = [note for row in rows for note in _row_notes(row)]
    legend = Text(
        "r: correlation of a rule's sum per execution with the reward of evaluations", "dim"
    )
    return Group(head, table, *notes, legend)


def _table_cells(row: dict[str, Any]) -> list[Text]:
    numbers = [str(row[name]) for name in ("seen", "fired", "executions")]
    numbers += [_format_number(row["total"], "+.3f"), _format_number(row["mean"], "+.3f")]
    numbers += [_format_number(row["correlation"], "+.2f")]
    examples = " ".join(name[:_ID_PREFIX] for name in row["examples"])
    words = [row["rule"], row["looks_at"], *numbers, examples]
    return [Text(word, "" if row["fired"] else "yellow") for word in words]


def _row_notes(row: dict[str, Any]) -> list[Text]:
    if row["silent"]:
        return [Text(f"{row['rule']} gives nothing: {row['silent']}", "yellow")]
    if row["left_out"]:
        return [Text(f"{row['rule']} leaves out: {row['left_out']}")]
    return []


def _format_number(value: float | None, spec: str) -> str:
    return "" if value is None else format(value, spec)
