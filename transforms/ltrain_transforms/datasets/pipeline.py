"""Spans -> tables, in three phases of pure functions on frames, without clock or network.

1. `trace_executions`: spans to calls, states, executions and rewards, for any set of whole
   executions.
2. `assign_credit`: rewards to advantages, for all executions of a wave, on frames with few columns.
3. `samples`: transitions and their tokens to rows, again for any set of whole executions.

Only the second phase compares executions, so the division into batches changes no row.
"""

from dataclasses import dataclass, replace

import polars as pl

from ltrain_transforms.calls import STATE_COLUMNS, calls, executions, idle_cutoff
from ltrain_transforms.credit import credit_inputs, outcome_advantages, select_groups, transitions
from ltrain_transforms.policy_lineage import OUTDATED
from ltrain_transforms.recipe import Recipe
from ltrain_transforms.rewards import (
    apply_gates,
    is_judged,
    outcomes,
    read_evaluations,
    rewards,
    rule_inputs,
)
from ltrain_transforms.samples import samples
from ltrain_transforms.source import (
    DEFAULT_SCOPE,
    CreditScope,
    concat_table,
    select_executions,
    to_drops,
)
from ltrain_transforms.states import digest, states
from ltrain_transforms.tables import DROPS, OTHER_SPAN, REWARDS, TABLES
from ltrain_transforms.traces import MISPLACED, UNTRUSTED, is_impostor

NOT_A_CALL = {OTHER_SPAN: "it describes no call: transport, or a process's own span"}
NO_CALLS = {"no_calls": "it counts in its group, and made no call of the trained policy"}


@dataclass(frozen=True, slots=True)
class ParsedSpans:
    """The content of spans, before a recipe assigns any reward."""

    calls: pl.DataFrame
    executions: pl.DataFrame
    states: pl.DataFrame
    observations: pl.DataFrame
    """`OBSERVATIONS`: what each call read and did."""
    evaluations: pl.DataFrame
    unreadable: pl.DataFrame
    """`DROPS`: spans whose call cannot be read and executions whose states cannot be read."""
    unmatched: pl.DataFrame
    """`DROPS`: evaluations without a call or execution that they judge."""


@dataclass(frozen=True, slots=True)
class TracedExecutions:
    """The tables that need one execution at a time."""

    calls: pl.DataFrame
    executions: pl.DataFrame
    states: pl.DataFrame
    rewards: pl.DataFrame
    """Without the rules over the rollout and before gates are applied."""
    drops: pl.DataFrame
    steps: pl.DataFrame
    """`CREDIT_INPUTS`: the columns of `calls` that credit reads."""


@dataclass(frozen=True, slots=True)
class CreditedExecutions:
    """The tables that compare the executions of a wave."""

    rewards: pl.DataFrame
    """The rewards of `TracedExecutions` and those that depend on the group or the outcome."""
    transitions: pl.DataFrame
    outcomes: pl.DataFrame
    """`execution_id`, `reward`: the outcome of each execution that has one."""
    trained_ids: pl.Series
    """`execution_id` of the trained executions."""
    drops: pl.DataFrame


@dataclass(frozen=True, slots=True)
class DerivedTables:
    """All tables of one selection, by name."""

    tables: dict[str, pl.DataFrame]
    outcomes: pl.DataFrame
    """`execution_id`, `reward`: the outcome of each execution that has one."""


def parse_spans(spans: pl.DataFrame, recipe: Recipe, newest: int | None = None) -> ParsedSpans:
    """Parse `SPANS` of whole executions.

    Args:
        newest: the end of the newest of all selected spans, in nanoseconds.
    """
    call_rows, unreadable_calls = calls(spans, recipe.source.tool_error)
    state_rows, observations, unreadable_states = states(call_rows)
    unreadable = concat_table(DROPS, unreadable_calls, unreadable_states)
    call_rows = _with_observations(call_rows, observations)
    execution_rows = executions(spans, call_rows, idle_cutoff(newest, recipe.source.idle_timeout))
    evaluation_rows, unmatched = read_evaluations(spans, call_rows)
    return ParsedSpans(
        call_rows, execution_rows, state_rows, observations, evaluation_rows, unreadable, unmatched
    )


def trace_executions(
    spans: pl.DataFrame,
    recipe: Recipe,
    newest: int | None = None,
    scope: CreditScope = DEFAULT_SCOPE,
) -> TracedExecutions:
    """Run phase 1 on `SPANS` of whole executions.

    Args:
        newest: the end of the newest of all selected spans, as in `parse_spans`.
    """
    parsed = parse_spans(spans, recipe, newest)
    call_rows, execution_rows = parsed.calls, parsed.executions
    inputs = rule_inputs(recipe, spans, call_rows, execution_rows, parsed.evaluations)
    reward_rows, uncredited = rewards(recipe, inputs)
    unused = _unused_spans(spans, parsed)
    digests = _state_digests(recipe, parsed)
    digested = call_rows.join(digests, "call_id", "left", maintain_order="left")
    steps = credit_inputs(recipe, digested, execution_rows, scope)
    drops = concat_table(DROPS, parsed.unreadable, unused, parsed.unmatched, uncredited)
    return TracedExecutions(call_rows, execution_rows, parsed.states, reward_rows, drops, steps)


def assign_credit(
    steps: pl.DataFrame,
    executions: pl.DataFrame,
    rewards: pl.DataFrame,
    recipe: Recipe,
    scope: CreditScope = DEFAULT_SCOPE,
) -> CreditedExecutions:
    """Run phase 2 on whole waves: every execution of a wave must be in the frames."""
    outdated = OUTDATED.to_frame()
    if scope.lineage is not None:
        outdated = scope.lineage.outdated(executions, steps, recipe.train.max_staleness)
    reward_rows, gated = _gate_without(outdated["execution_id"], recipe, rewards, executions)
    outcome_rows = outcomes(recipe, reward_rows, executions)
    of_policies = (mode for policy in recipe.policy for mode in policy.modes)
    counted, left_out = select_executions(
        executions,
        outcome_rows["execution_id"],
        recipe.filter,
        replace(scope, named_modes={*scope.named_modes, *of_policies}),
        outdated,
        judged=is_judged(recipe),
    )
    compared_rows = outcome_advantages(recipe, counted, outcome_rows, reward_rows, steps)
    transition_rows = transitions(recipe, compared_rows, steps, reward_rows)
    trained_ids, filtered = select_groups(recipe, compared_rows, transition_rows)
    without_calls = _without_calls(trained_ids, transition_rows)
    drops = concat_table(DROPS, gated, left_out, filtered, without_calls)
    return CreditedExecutions(reward_rows, transition_rows, outcome_rows, trained_ids, drops)


def _gate_without(
    outdated: pl.Series, recipe: Recipe, rewards: pl.DataFrame, executions: pl.DataFrame
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return what `apply_gates` returns, with the outdated executions in no group's statistics.

    These executions keep their rewards as they are.
    """
    is_outdated = pl.col("execution_id").is_in(outdated.implode())
    gated = apply_gates(recipe, rewards.filter(~is_outdated), executions.filter(~is_outdated))
    return concat_table(REWARDS, gated[0], rewards.filter(is_outdated)), gated[1]


def derive(
    spans: pl.DataFrame, recipe: Recipe, scope: CreditScope = DEFAULT_SCOPE
) -> DerivedTables:
    """Run the three phases on `SPANS` in memory."""
    newest = None if spans.is_empty() else int(spans.select(pl.col("end").max()).item())
    trace = trace_executions(spans, recipe, newest, scope)
    credit = assign_credit(trace.steps, trace.executions, trace.rewards, recipe, scope)
    trained = credit.transitions.filter(pl.col("execution_id").is_in(credit.trained_ids.implode()))
    rows, unusable = samples(recipe, trained, trace.calls, trace.executions, scope.served)
    drops = concat_table(DROPS, trace.drops, credit.drops, unusable)
    frames = (
        *(trace.calls, trace.executions, trace.states, credit.rewards),
        *(credit.transitions, rows, drops),
    )
    names = (table.name for table in TABLES)
    return DerivedTables(dict(zip(names, frames, strict=True)), credit.outcomes)


def _with_observations(calls: pl.DataFrame, observations: pl.DataFrame) -> pl.DataFrame:
    added = observations.select("call_id", "reads", "action", "turn_index")
    joined = calls.drop(STATE_COLUMNS).join(added, "call_id", "left", maintain_order="left")
    return joined.select(calls.columns)


def _state_digests(recipe: Recipe, parsed: ParsedSpans) -> pl.DataFrame:
    """Return `call_id` and `state_digest`: of all variables, or of those that the recipe names."""
    step = recipe.credit.step
    if step is None or not step.state:
        return parsed.observations.select("call_id", "state_digest")
    return digest(parsed.states, parsed.calls, step.state)


def _without_calls(trained_ids: pl.Series, transitions: pl.DataFrame) -> pl.DataFrame:
    """Return `DROPS`: executions that are compared and have no call to train."""
    ids = trained_ids.filter(~trained_ids.is_in(transitions["execution_id"].implode()))
    return to_drops(
        "rows", ids.to_frame().with_columns(reason=pl.lit("no_calls")), "execution_id", NO_CALLS
    )


def _unused_spans(spans: pl.DataFrame, parsed: ParsedSpans) -> pl.DataFrame:
    """Return `DROPS`: the spans that are in no table."""
    used = pl.concat(
        [
            parsed.calls["source_spans"].explode(),
            parsed.executions["source_spans"].explode(),
            parsed.evaluations["evidence"],
            _span_ids(parsed.unmatched),
            _span_ids(parsed.unreadable),
        ]
    )
    unused = spans.filter(~pl.col("span_id").is_in(used.drop_nulls().implode()))
    untrusted = is_impostor()
    others = unused.filter(~untrusted).with_columns(reason=pl.lit(OTHER_SPAN))
    drops = to_drops("spans", others, "span_id", NOT_A_CALL)
    return concat_table(DROPS, drops, _untrusted_spans(unused.filter(untrusted)))


def _span_ids(drops: pl.DataFrame) -> pl.Series:
    """Return the span of each drop, whose id is the span's or starts with it and a colon."""
    return drops.select(pl.col("id").str.split(":").list.first()).to_series()


def _untrusted_spans(spans: pl.DataFrame) -> pl.DataFrame:
    """Return `DROPS`: spans that claim to be of an ltrain process and are not."""
    detail = (
        pl.when(pl.col("trusted").fill_null(False))
        .then(pl.format(MISPLACED, "scope"))
        .otherwise(pl.format(UNTRUSTED["untrusted"], pl.col("sender").fill_null("")))
    )
    drops = spans.select(
        stage=pl.lit("spans"), id="span_id", reason=pl.lit("untrusted"), detail=detail
    )
    return DROPS.select(drops.lazy()).collect()
