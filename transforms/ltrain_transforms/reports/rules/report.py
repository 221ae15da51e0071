"""A report on the rewards of a recipe: what each of them gives on stored traces.

For each reward it has the count and the sum of its contributions, the correlation of its sum per
execution with the outcome, and the reason if it gives nothing.
"""

from dataclasses import dataclass

import polars as pl
from rich.console import Group, RenderableType
from rich.table import Table as Grid
from rich.text import Text

from ltrain_collector.store import Store
from ltrain_instrument.quantity import quantity
from ltrain_transforms.datasets import Progress, ignore_progress
from ltrain_transforms.recipe import Recipe
from ltrain_transforms.reports.rules.tally import RuleStatistics, read_batches
from ltrain_transforms.rewards import Rule, TraceCounts, rules_of
from ltrain_transforms.source import SPANS_PER_BATCH, Selection, empty_selection

EXAMPLES = 3
"""Rollouts that are listed for each rule: those with the largest sums by absolute value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleRow:
    """One reward of the recipe, on the selected traces."""

    rule: str
    """The name of the reward."""
    looks_at: str
    """The input of the reward: a kind of call, rollout, python or evaluation."""
    seen: int
    """Number of these inputs in the traces."""
    fired: int
    """Number of its contributions that count."""
    executions: int
    """Number of executions with these contributions."""
    total: float
    """The sum of its contributions, after bounds, weight and gate."""
    mean: float | None
    """The mean of its contributions."""
    correlation: float | None
    """Correlation of its sum per execution with the reward of evaluations, from -1 to 1; None if
    either is constant."""
    left_out: str | None
    """Contributions that do not count, by reason."""
    examples: list[str]
    """Rollouts with its largest sums by absolute value."""
    silent: str | None
    """Why it gives nothing."""


@dataclass(frozen=True, slots=True)
class RulesReport:
    rules: list[RuleRow]
    """In the recipe's order."""
    executions: int
    """Count of all executions."""
    judged: int
    """Count of the executions that an evaluation judges."""
    ambiguous: int = 0
    """Count of log records of no span that several calls may have written."""


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
    statistics = RuleStatistics(recipe)
    for spans, newest in read_batches(store, recipe, selection, spans_a_batch, progress):
        statistics.add(spans, newest)
    if statistics.executions.is_empty():
        raise empty_selection(store, recipe.source, selection)
    return report_statistics(statistics)[1]


def report_statistics(statistics: RuleStatistics) -> tuple[pl.DataFrame, RulesReport]:
    """Return the executions with `GROUP_STATS`, and the report on the rewards."""
    executions, sums = statistics.finish()
    counts = TraceCounts(
        executions,
        statistics.kinds,
        statistics.signals,
        statistics.evaluations,
        statistics.null_predicates,
    )
    rows = [_row(rule, counts, sums) for rule in rules_of(statistics.recipe)]
    judged = executions["reward"].count()
    return executions, RulesReport(rows, executions.height, judged, statistics.ambiguous)


def _row(rule: Rule, counts: TraceCounts, sums: pl.DataFrame) -> RuleRow:
    """Return the row of a reward.

    Args:
        sums: `SUMS`, after rules over the rollout and gates.
    """
    own = sums.filter(pl.col("rule") == rule.reward.name)
    counted = own.filter(pl.col("reason").is_null())
    uncounted = own.filter(pl.col("reason").is_not_null())
    fired, total = int(counted["count"].sum()), float(counted["value"].sum())
    values = counted.select("execution_id", "value")
    joined = counts.executions.join(values, "execution_id", "left", maintain_order="left")
    reasons = sorted(uncounted.group_by("reason").agg(pl.col("count").sum()).rows())
    left_out = ", ".join(f"{reason} {count}" for reason, count in reasons) or None
    return RuleRow(
        rule=rule.reward.name,
        looks_at=rule.looks_at(),
        seen=rule.count_inputs(counts),
        fired=fired,
        executions=counted.height,
        total=total,
        mean=total / fired if fired else None,
        correlation=_correlation(joined),
        left_out=left_out,
        examples=_examples(joined),
        silent=None if fired else _why_silent(rule, counts, left_out),
    )


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


def _why_silent(rule: Rule, counts: TraceCounts, left_out: str | None) -> str:
    """Return why a reward gives nothing."""
    if left_out is not None:
        return f"all its contributions are left out: {left_out}"
    return rule.why_silent(counts)


_COLUMNS = ("rule", "looks at", "seen", "fired", "executions", "total", "mean", "r", "examples")
_ID_PREFIX = 12
"""Characters of a rollout id that are shown; `ltrain show` accepts such a prefix."""


def render_report(report: RulesReport) -> RenderableType:
    """Render a table of the rules, then what they leave out and which rules give nothing."""
    head = Text(
        f"{quantity(report.executions, 'execution')}, {report.judged} of them judged", "bold"
    )
    table = Grid(box=None, padding=(0, 1, 0, 0))
    for name in _COLUMNS:
        is_text = name in ("rule", "looks at", "examples")
        table.add_column(name, justify="left" if is_text else "right", overflow="fold")
    for row in report.rules:
        table.add_row(*_table_cells(row))
    notes = [note for row in report.rules for note in _row_notes(row)]
    if report.ambiguous:
        records = quantity(report.ambiguous, "log record")
        notes.append(Text(f"{records} of no span credited to no call: several ran (ambiguous)"))
    legend = Text(
        "r: correlation of a rule's sum per execution with the reward of evaluations", "dim"
    )
    return Group(head, table, *notes, legend)


def _table_cells(row: RuleRow) -> list[Text]:
    numbers = [str(number) for number in (row.seen, row.fired, row.executions)]
    numbers += [_format_number(row.total, "+.3f"), _format_number(row.mean, "+.3f")]
    numbers += [_format_number(row.correlation, "+.2f")]
    examples = " ".join(name[:_ID_PREFIX] for name in row.examples)
    words = [row.rule, row.looks_at, *numbers, examples]
    return [Text(word, "" if row.fired else "yellow") for word in words]


def _row_notes(row: RuleRow) -> list[Text]:
    if row.silent:
        return [Text(f"{row.rule} gives nothing: {row.silent}", "yellow")]
    if row.left_out:
        return [Text(f"{row.rule} leaves out: {row.left_out}")]
    return []


def _format_number(value: float | None, spec: str) -> str:
    return "" if value is None else format(value, spec)
