"""Spans -> tables, in three phases of pure functions on frames, without clock or network.

1. `traced`: spans to calls, states, executions and rewards, on any set of whole executions.
2. `credited`: rewards to advantages, over all executions of a wave, on narrow frames.
3. `samples`: transitions and their tokens to rows, again on any set of whole executions.

Only the second looks across executions, so how they are cut into batches changes no row.
"""

from dataclasses import dataclass

import polars as pl

from ltrain_transforms.calls import STATE_COLUMNS, calls
from ltrain_transforms.credit import chosen, compared, narrow, transitions
from ltrain_transforms.evaluations import evaluations
from ltrain_transforms.executions import executions, idle_cutoff
from ltrain_transforms.recipe import Recipe
from ltrain_transforms.rewards import outcomes, rewards, settled
from ltrain_transforms.roles import MISPLACED, UNTRUSTED, is_impostor
from ltrain_transforms.samples import samples
from ltrain_transforms.selection import counting, dropped, gathered
from ltrain_transforms.states import digest, states
from ltrain_transforms.tables import DROPS, TABLES

NOT_A_CALL = {"not_a_call": "it describes no call: transport, or a process's own span"}
NO_CALLS = {"no_calls": "it counts in its group, and made no call of the trained policy"}


@dataclass(frozen=True, slots=True)
class Observed:
    """What spans say, before a recipe gives anything for it."""

    calls: pl.DataFrame
    executions: pl.DataFrame
    states: pl.DataFrame
    seen: pl.DataFrame
    """`OBSERVATIONS` of the calls."""
    evaluations: pl.DataFrame
    unreadable: pl.DataFrame
    """`DROPS`: spans whose call, executions whose states cannot be read."""
    unheard: pl.DataFrame
    """`DROPS`: evaluations that judge nothing."""


@dataclass(frozen=True, slots=True)
class Traced:
    """What executions say by themselves."""

    calls: pl.DataFrame
    executions: pl.DataFrame
    states: pl.DataFrame
    rewards: pl.DataFrame
    """Without those of rules over the rollout; gates have not been asked."""
    drops: pl.DataFrame
    steps: pl.DataFrame
    """`NARROW`: what credit reads of `calls`."""


@dataclass(frozen=True, slots=True)
class Credited:
    """What executions are worth beside each other."""

    rewards: pl.DataFrame
    """Those of single executions, and what only their group and outcome decide."""
    transitions: pl.DataFrame
    outcomes: pl.DataFrame
    """`execution_id`, `reward`: the outcome of each execution that has one."""
    kept: pl.Series
    """Ids of the executions to train on."""
    drops: pl.DataFrame


@dataclass(frozen=True, slots=True)
class Derived:
    """All tables of one selection, by name."""

    tables: dict[str, pl.DataFrame]
    outcomes: pl.DataFrame
    """`execution_id`, `reward`: the outcome of each execution that has one."""


def observed(spans: pl.DataFrame, recipe: Recipe, newest: int | None = None) -> Observed:
    """Read `SPANS` of whole executions.

    Args:
        newest: when the newest span of all that are selected ended, in nanoseconds.
    """
    called, broken = calls(spans)
    written, seen, unwalked = states(called)
    unreadable = gathered(DROPS, broken, unwalked)
    called = _with_seen(called, seen)
    attempted = executions(spans, called, idle_cutoff(newest, recipe.source.idle_timeout))
    judged, unheard = evaluations(spans, called)
    return Observed(called, attempted, written, seen, judged, unreadable, unheard)


def traced(spans: pl.DataFrame, recipe: Recipe, newest: int | None = None) -> Traced:
    """Return all that `SPANS` of whole executions say by themselves; `newest` as in `observed`."""
    found = observed(spans, recipe, newest)
    called, attempted = found.calls, found.executions
    given, uncredited = rewards(recipe, called, attempted, found.evaluations)
    others = [found.unheard, found.unreadable]
    stray = _not_calls(spans, called, attempted, found.evaluations, others)
    anchors = _anchors(recipe, called, found.states, found.seen)
    anchored = called.join(anchors, "call_id", "left", maintain_order="left")
    steps = narrow(recipe, anchored, attempted)
    drops = gathered(DROPS, found.unreadable, stray, found.unheard, uncredited)
    return Traced(called, attempted, found.states, given, drops, steps)


def credited(
    steps: pl.DataFrame, executions: pl.DataFrame, rewards: pl.DataFrame, recipe: Recipe
) -> Credited:
    """Compare executions; of a wave all must be given."""
    given, gated = settled(recipe, rewards, executions)
    worth = outcomes(recipe, given, executions)
    judged = any(reward.evaluation for reward in recipe.reward)
    counted, left_out = counting(executions, worth["execution_id"], recipe.filter, judged=judged)
    ranked = compared(recipe, counted, worth, given, steps)
    made = transitions(recipe, ranked, steps, given)
    kept, low = chosen(recipe, ranked, made)
    drops = gathered(DROPS, gated, left_out, low, _idle(kept, made))
    return Credited(given, made, worth, kept, drops)


def derive(spans: pl.DataFrame, recipe: Recipe) -> Derived:
    """Make every table from `SPANS`, all in memory."""
    newest = None if spans.is_empty() else int(spans.select(pl.col("end").max()).item())
    trace = traced(spans, recipe, newest)
    credit = credited(trace.steps, trace.executions, trace.rewards, recipe)
    trained = credit.transitions.filter(pl.col("execution_id").is_in(credit.kept.implode()))
    rows, unusable = samples(recipe, trained, trace.calls, trace.executions)
    drops = gathered(DROPS, trace.drops, credit.drops, unusable)
    frames = (
        *(trace.calls, trace.executions, trace.states, credit.rewards),
        *(credit.transitions, rows, drops),
    )
    names = (table.name for table in TABLES)
    return Derived(dict(zip(names, frames, strict=True)), credit.outcomes)


def _with_seen(calls: pl.DataFrame, seen: pl.DataFrame) -> pl.DataFrame:
    told = seen.select("call_id", "reads", "action", "turn_index")
    return (
        calls.drop(STATE_COLUMNS)
        .join(told, "call_id", "left", maintain_order="left")
        .select(calls.columns)
    )


def _anchors(
    recipe: Recipe, calls: pl.DataFrame, states: pl.DataFrame, seen: pl.DataFrame
) -> pl.DataFrame:
    """Give the `state_digest` of each call: of all it saw, or of the variables a recipe names."""
    step = recipe.credit.step
    if step is None or not step.state:
        return seen.select("call_id", "state_digest")
    return digest(states, calls, step.state)


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
    others: list[pl.DataFrame],
) -> pl.DataFrame:
    """Name the spans that no table was made from."""
    used = pl.concat(
        [
            calls["source_spans"].explode(),
            executions["source_spans"].explode(),
            evaluations["evidence"],
            *(_of_spans(drops) for drops in others),
        ]
    )
    rest = spans.filter(~pl.col("span_id").is_in(used.drop_nulls().implode()))
    poses = is_impostor()
    stray = rest.filter(~poses).with_columns(reason=pl.lit("not_a_call"))
    drops = dropped("spans", stray, "span_id", NOT_A_CALL)
    return gathered(DROPS, drops, _posing(rest.filter(poses)))


def _of_spans(drops: pl.DataFrame) -> pl.Series:
    """Return the span that each drop names; the id is the span's, or begins with it."""
    return drops.select(pl.col("id").str.split(":").list.first()).to_series()


def _posing(spans: pl.DataFrame) -> pl.DataFrame:
    """Name the spans that look like those of ltrain's own processes, and are none."""
    detail = (
        pl.when(pl.col("trusted").fill_null(False))
        .then(pl.format(MISPLACED, "scope"))
        .otherwise(pl.format(UNTRUSTED["untrusted"], pl.col("sender").fill_null("")))
    )
    drops = spans.select(
        stage=pl.lit("spans"), id="span_id", reason=pl.lit("untrusted"), detail=detail
    )
    return DROPS.select(drops.lazy()).collect()
