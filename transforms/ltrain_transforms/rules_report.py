"""What each reward of a recipe gives on stored traces, before anyone trains on it.

Beside how often it fires and what it adds up to: how its sum over an execution goes with the
outcome, and of a rule that gives nothing, why.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import polars as pl

from ltrain_collector.store import Store
from ltrain_transforms.absence import empty_selection, explain_query_errors
from ltrain_transforms.batches import SPANS_PER_BATCH, plan_batches
from ltrain_transforms.build import Progress, silent
from ltrain_transforms.recipe import Recipe, Reward
from ltrain_transforms.source import Selection, read_spans, watermark
from ltrain_transforms.tables.column import FLOAT, INTEGER, STRING, STRINGS, Column, Table
from ltrain_transforms.tally import Tally, Unknown

EXAMPLES = 3
"""Rollouts named for each rule: those it gave most to, or took most from."""

REPORT = Table(
    "rules",
    "One reward of the recipe, on the selected traces.",
    (
        Column("rule", STRING, "Its name."),
        Column("looks_at", STRING, "A kind of call, rollout, python or evaluation."),
        Column("seen", INTEGER, "How many of those there are."),
        Column("fired", INTEGER, "How many contributions count."),
        Column("executions", INTEGER, "How many executions they are of."),
        Column("total", FLOAT, "Their sum, after bounds, weight and gate."),
        Column("mean", FLOAT, "Their mean."),
        Column("correlation", FLOAT, "Of its sum an execution with what evaluations gave; -1 to 1, "
               "null where either is the same everywhere."),
        Column("left_out", STRING, "Contributions that do not count, by reason, or null."),
        Column("examples", STRINGS, "Rollouts it gave most to, or took most from."),
        Column("silent", STRING, "Why it gives nothing, or null."),
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Report:
    rules: pl.DataFrame
    """`REPORT`, in the recipe's order."""
    executions: int
    """How many executions were looked at."""
    judged: int
    """How many of them an evaluation judges."""


def stored(
    store: Store,
    recipe: Recipe,
    selection: Selection,
    *,
    spans_a_batch: int = SPANS_PER_BATCH,
    progress: Progress = silent,
) -> Report:
    """Report on what `store` holds, in the memory of a batch and what is narrow of all.

    Args:
        spans_a_batch: as `build` has it; changes nothing that is said.

    Raises:
        NothingToBuild: when the recipe's source selects no execution.
    """
    with explain_query_errors(store, recipe.source, selection):
        _, newest = watermark(store, recipe.source, selection)
        batches = plan_batches(store, recipe.source, selection, spans_a_batch)
    tally = Tally(recipe)
    for done, batch in enumerate(batches, 1):
        spans, _ = read_spans(store, recipe.source, selection, batch)
        tally.add(spans, newest)
        progress("trace", done, len(batches))
    if tally.executions.is_empty():
        raise empty_selection(store, recipe.source, selection)
    return _report(tally)


@dataclass(frozen=True, slots=True)
class _Traces:
    """What the recipe makes of the traces."""

    tally: Tally
    executions: pl.DataFrame
    """With the columns of `GROUP_STATS`."""
    sums: pl.DataFrame
    """`SUMS`, with those of rules over the rollout and of shut gates."""


def _report(tally: Tally) -> Report:
    traces = _Traces(tally, *tally.settled())
    rows = [dict(_row(reward, traces)) for reward in tally.recipe.reward]
    columns = {name: [row[name] for row in rows] for name in REPORT.schema}
    judged = traces.executions["reward"].count()
    return Report(pl.DataFrame(columns, REPORT.schema), traces.executions.height, judged)


def _row(reward: Reward, traces: _Traces) -> Iterator[tuple[str, object]]:
    own = traces.sums.filter(pl.col("rule") == reward.name)
    counts = own.filter(pl.col("reason").is_null())
    vain = own.filter(pl.col("reason").is_not_null())
    seen, fired, total = _seen(reward, traces), int(counts["count"].sum()), counts["value"].sum()
    yield "rule", reward.name
    yield "looks_at", _looks_at(reward)
    yield "seen", seen
    yield "fired", fired
    yield "executions", counts.height
    yield "total", total
    yield "mean", total / fired if fired else None
    by = counts.select("execution_id", "value")
    joined = traces.executions.join(by, "execution_id", "left", maintain_order="left")
    yield "correlation", _correlation(joined)
    reasons = sorted(vain.group_by("reason").agg(pl.col("count").sum()).rows())
    left_out = ", ".join(f"{reason} {count}" for reason, count in reasons) or None
    yield "left_out", left_out
    yield "examples", _examples(joined)
    yield "silent", None if fired else _silent(reward, traces, seen, left_out)


def _looks_at(reward: Reward) -> str:
    return "python" if reward.python else "evaluation" if reward.evaluation else str(reward.on)


def _seen(reward: Reward, traces: _Traces) -> int:
    if reward.evaluation:
        said = traces.tally.said.items()
        return sum(count for (name, _), count in said if name == reward.evaluation)
    if reward.python or reward.on == "rollout":
        return traces.executions.height
    return traces.tally.kinds[str(reward.on)]


def _correlation(joined: pl.DataFrame) -> float | None:
    """Pearson's, over the executions that an evaluation judges."""
    pairs = joined.filter(pl.col("reward").is_not_null()).select(
        "reward", pl.col("value").fill_null(0.0)
    )
    if pairs.height < 2 or any(pairs[name].n_unique() < 2 for name in pairs.columns):
        return None
    return float(pairs.select(pl.corr("reward", "value")).item())


def _examples(joined: pl.DataFrame) -> list[str]:
    felt = joined.filter(pl.col("value").is_not_null()).with_columns(
        shown=pl.coalesce("rollout_id", "execution_id"), size=pl.col("value").abs()
    )
    ranked = felt.sort("size", "shown", descending=[True, False])
    return ranked["shown"].unique(maintain_order=True).head(EXAMPLES).to_list()


def _silent(reward: Reward, traces: _Traces, seen: int, left_out: str | None) -> str:
    """Say why a reward gives nothing."""
    if left_out is not None:
        return f"all it gives is left out: {left_out}"
    if reward.evaluation:
        return _unsaid(reward, traces, seen)
    if reward.python:
        return "the function gives nothing for any execution"
    if seen == 0:
        kinds = ", ".join(sorted(traces.tally.kinds)) or "none"
        return f"the traces hold no {reward.on} call; kinds in them: {kinds}"
    unknown = _unknown(reward, traces)
    what = "executions" if reward.on == "rollout" else f"{reward.on} calls"
    said = f"`when` is true for none of {seen} {what}"
    if unknown.rows == 0:
        return said
    return f"{said}, and null for {unknown.rows}: no {', '.join(unknown.empty) or 'value'} there"


def _unknown(reward: Reward, traces: _Traces) -> Unknown:
    if reward.on != "rollout":
        return traces.tally.unknown[reward.name]
    unknown = Unknown()
    unknown.add(reward, traces.executions)
    return unknown


def _unsaid(reward: Reward, traces: _Traces, seen: int) -> str:
    said = traces.tally.said
    if seen:
        sources = ", ".join(sorted(source for name, source in said if name == reward.evaluation))
        return f"only {sources} says '{reward.evaluation}', and from is '{reward.from_}'"
    names = ", ".join(sorted({name for name, _ in said})) or "none"
    return f"nobody says '{reward.evaluation}'; evaluations there: {names}"
