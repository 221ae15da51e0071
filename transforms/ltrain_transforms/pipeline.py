"""Spans -> tables: every stage in order, pure functions on frames, without clock or network."""

from dataclasses import dataclass

import polars as pl

from ltrain_transforms.calls import calls
from ltrain_transforms.credit import chosen, compared, transitions
from ltrain_transforms.evaluations import evaluations
from ltrain_transforms.executions import executions
from ltrain_transforms.recipe import Recipe
from ltrain_transforms.rewards import outcomes, rewards, settled
from ltrain_transforms.samples import samples
from ltrain_transforms.selection import counting, dropped, gathered
from ltrain_transforms.states import states
from ltrain_transforms.tables import DROPS, TABLES

NOT_A_CALL = {"not_a_call": "it describes no call: transport, or a process's own span"}
NO_CALLS = {"no_calls": "it counts in its group, and made no call of the trained policy"}


@dataclass(frozen=True, slots=True)
class Derived:
    """All tables of one selection, by name."""

    tables: dict[str, pl.DataFrame]
    outcomes: pl.DataFrame
    """`execution_id`, `reward`: the outcome of each execution that has one."""


def derive(spans: pl.DataFrame, recipe: Recipe) -> Derived:
    """Make every table from `SPANS`."""
    policy = recipe.policy[0]
    called = calls(spans)
    written, seen = states(called)
    called = _with_reads(called, seen)
    attempted = executions(spans, called)
    judged, unheard = evaluations(spans, called)
    said, uncredited = rewards(recipe, called, attempted, judged)
    given, gated = settled(recipe, said, attempted)
    worth = outcomes(recipe, given, attempted)
    counted, left_out = counting(attempted, worth["execution_id"], recipe.filter)
    ranked = compared(counted, worth, recipe.credit.outcome.estimator)
    saw = called.join(seen.select("call_id", "state_digest"), "call_id", "left")
    credited = transitions(ranked, saw, given, policy, recipe.credit)
    kept, low = chosen(ranked, credited, recipe.filter.groups)
    trained = credited.filter(credited["execution_id"].is_in(kept.implode()))
    rows, unusable = samples(recipe, trained, called, attempted)
    stray = _not_calls(spans, called, attempted, judged, unheard)
    idle = _idle(kept, trained)
    drops = gathered(DROPS, stray, unheard, left_out, uncredited, gated, low, idle, unusable)
    frames = (called, attempted, written, given, credited, rows, drops)
    names = (table.name for table in TABLES)
    return Derived(dict(zip(names, frames, strict=True)), worth)


def _with_reads(calls: pl.DataFrame, seen: pl.DataFrame) -> pl.DataFrame:
    reads = seen.select("call_id", "reads")
    return (
        calls.drop("reads")
        .join(reads, "call_id", "left", maintain_order="left")
        .select(calls.columns)
    )


def _idle(kept: pl.Series, transitions: pl.DataFrame) -> pl.DataFrame:
    """Name the executions that are compared and have nothing to train."""
    idle = kept.filter(~kept.is_in(transitions["execution_id"].implode()))
    return dropped(
        "rows", idle.to_frame().with_columns(reason=pl.lit("no_calls")), "execution_id", NO_CALLS
    )


def _not_calls(
    spans: pl.DataFrame,
    calls: pl.DataFrame,
    executions: pl.DataFrame,
    evaluations: pl.DataFrame,
    unheard: pl.DataFrame,
) -> pl.DataFrame:
    """Name the spans that no table was made from."""
    used = pl.concat(
        [
            calls["source_spans"].explode(),
            executions["source_spans"].explode(),
            evaluations["evidence"],
            unheard["id"],
        ]
    )
    rest = spans.filter(~pl.col("span_id").is_in(used.drop_nulls().implode()))
    return dropped("spans", rest.with_columns(reason=pl.lit("not_a_call")), "span_id", NOT_A_CALL)
