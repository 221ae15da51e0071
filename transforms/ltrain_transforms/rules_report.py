"""What each reward of a recipe gives on stored traces, before anyone trains on it.

Beside how often it fires and what it adds up to: how its sum over an execution goes with the
outcome, and of a rule that gives nothing, why.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import polars as pl

from ltrain_collector.errors import QueryFailed
from ltrain_collector.store import Store
from ltrain_transforms import sql
from ltrain_transforms.build import UNKNOWN_DATABASE, UNKNOWN_TABLE
from ltrain_transforms.contributions import CONTRIBUTIONS, looked_at
from ltrain_transforms.errors import NothingToBuild
from ltrain_transforms.evaluations import evaluations
from ltrain_transforms.pipeline import derive
from ltrain_transforms.recipe import Recipe, Reward
from ltrain_transforms.rewards import apart, beside, contributed, resettled
from ltrain_transforms.signals import with_fit
from ltrain_transforms.source import Selection, read
from ltrain_transforms.tables.column import FLOAT, INTEGER, STRING, STRINGS, Column, Table

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


@dataclass(frozen=True, slots=True)
class _Traces:
    """What the recipe makes of the traces."""

    recipe: Recipe
    calls: pl.DataFrame
    executions: pl.DataFrame
    """With the columns of `STANDING`."""
    evaluations: pl.DataFrame
    contributions: pl.DataFrame


def stored(store: Store, recipe: Recipe, selection: Selection) -> Report:
    """Report on what `store` holds.

    Raises:
        NothingToBuild: when the recipe's source selects no execution.
    """
    try:
        spans, _ = read(store, recipe.source, selection)
    except QueryFailed as error:
        if error.code not in (UNKNOWN_TABLE, UNKNOWN_DATABASE):
            raise
        spans = pl.DataFrame()
    if spans.is_empty():
        run = selection.run or recipe.source.run
        asked = {"run": run, "mode": selection.mode, "wave": selection.wave}
        said = ", ".join(f"{name} {value}" for name, value in asked.items() if value is not None)
        raise NothingToBuild(
            f"The store {store.name} holds no execution of what [source] selects ({said}). "
            "--run, --mode all and --store look elsewhere; `ltrain rollout` makes some."
        )
    return report(spans, recipe)


def report(spans: pl.DataFrame, recipe: Recipe) -> Report:
    """Report on `SPANS`."""
    traces = _traces(spans, recipe)
    rows = [dict(_row(reward, traces)) for reward in recipe.reward]
    columns = {name: [row[name] for row in rows] for name in REPORT.schema}
    judged = traces.executions["reward"].count()
    return Report(pl.DataFrame(columns, REPORT.schema), traces.executions.height, judged)


def _traces(spans: pl.DataFrame, recipe: Recipe) -> _Traces:
    tables = derive(spans, recipe).tables
    calls, executions = tables["calls"], tables["executions"]
    said, _ = evaluations(spans, calls)
    first = contributed(recipe, calls, executions, said)
    given, _ = apart(first)
    vain = first.filter(pl.col("reason").is_not_null())
    last = resettled(recipe, given, executions)
    known = beside(recipe, given, executions)
    made = pl.concat([CONTRIBUTIONS.to_frame(), vain, last])
    return _Traces(recipe, calls, known, said, made)


def _row(reward: Reward, traces: _Traces) -> Iterator[tuple[str, object]]:
    own = traces.contributions.filter(
        pl.col("rule") == reward.name, pl.col("reason").ne_missing("unheard")
    )
    counts = own.filter(pl.col("reason").is_null())
    vain = own.filter(pl.col("reason").is_not_null())
    seen = _seen(reward, traces)
    yield "rule", reward.name
    yield "looks_at", _looks_at(reward)
    yield "seen", seen
    yield "fired", counts.height
    yield "executions", counts["execution_id"].n_unique()
    yield "total", counts["value"].sum()
    yield "mean", counts["value"].mean()
    by = counts.group_by("execution_id").agg(pl.col("value").sum())
    joined = traces.executions.join(by, "execution_id", "left", maintain_order="left")
    yield "correlation", _correlation(joined)
    reasons = sorted(vain.group_by("reason").len().rows())
    left_out = ", ".join(f"{reason} {count}" for reason, count in reasons) or None
    yield "left_out", left_out
    yield "examples", _examples(joined)
    yield "silent", None if counts.height else _silent(reward, traces, seen, left_out)


def _looks_at(reward: Reward) -> str:
    return "python" if reward.python else "evaluation" if reward.evaluation else str(reward.on)


def _seen(reward: Reward, traces: _Traces) -> int:
    if reward.evaluation:
        return traces.evaluations.filter(pl.col("name") == reward.evaluation).height
    if reward.python or reward.on == "rollout":
        return traces.executions.height
    return traces.calls.filter(pl.col("kind") == reward.on).height


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
        kinds = ", ".join(sorted(set(traces.calls["kind"]))) or "none"
        return f"the traces hold no {reward.on} call; kinds in them: {kinds}"
    when = reward.bound(reward.when)
    unknown = sql.fired(reward.name, _rows(reward, traces), f"({when}) IS NULL", "1")
    what = "executions" if reward.on == "rollout" else f"{reward.on} calls"
    said = f"`when` is true for none of {seen} {what}"
    empty = sorted(one for one in sql.names(when) if unknown[one].null_count() == unknown.height)
    if unknown.is_empty():
        return said
    return f"{said}, and null for {unknown.height}: no {', '.join(empty) or 'value'} there"


def _unsaid(reward: Reward, traces: _Traces, seen: int) -> str:
    if seen:
        own = traces.evaluations.filter(pl.col("name") == reward.evaluation)
        sources = ", ".join(sorted(set(own["source"])))
        return f"only {sources} says '{reward.evaluation}', and from is '{reward.from_}'"
    names = ", ".join(sorted(set(traces.evaluations["name"]))) or "none"
    return f"nobody says '{reward.evaluation}'; evaluations there: {names}"


def _rows(reward: Reward, traces: _Traces) -> pl.DataFrame:
    """Give what the rule's predicate is read on."""
    if reward.on == "rollout":
        rows = traces.executions
    else:
        rows = looked_at(traces.recipe, traces.calls).filter(pl.col("kind") == reward.on)
    if reward.schema_ is not None:
        rows = with_fit(rows, reward.schema_)
    return rows.with_columns(**sql.with_names(reward.name, rows.schema, reward.let))
