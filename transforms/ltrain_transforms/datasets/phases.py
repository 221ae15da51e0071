"""The three phases of a build on files: workers run the first and the third, one batch at a time.

A phase reads the files that the phase before it wrote to the draft, so any process on any machine
that can access the folder may process a batch.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from ltrain_collector.dsn import Server
from ltrain_collector.store import Store
from ltrain_instrument import attributes
from ltrain_transforms.datasets.draft import Draft, Part
from ltrain_transforms.datasets.manifest import policy_versions
from ltrain_transforms.datasets.pipeline import assign_credit, trace_executions
from ltrain_transforms.estimators import Reach, outcome_estimator
from ltrain_transforms.recipe import Recipe
from ltrain_transforms.rendering import READ, ServedPolicy
from ltrain_transforms.samples import COLUMNS, count_savings, samples
from ltrain_transforms.source import (
    CreditScope,
    ExecutionBatch,
    Selection,
    concat_table,
    read_spans,
)
from ltrain_transforms.tables import DROPS, EXECUTION_CONTENTS, REWARDS, TRANSITIONS
from ltrain_transforms.traces import Role, iter_spans

STEPS = 250_000
"""Calls in one round of credit, unless one wave has more; a call takes about 200 bytes."""

WAVE = ("run_id", "mode", "wave")


@dataclass(frozen=True, slots=True)
class SpansFile:
    """The spans of a batch that another process has read."""

    path: Path
    unresolved: pl.DataFrame
    """`DROPS`: spans of the batch that belong to no execution."""

    def read(self) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Return `SPANS` and `DROPS`, and remove the file."""
        spans = pl.read_ipc(self.path)
        self.path.unlink()  # the memory map keeps the content until it is released
        return spans, self.unresolved


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """A batch on a server, which the worker itself reads."""

    server: Server
    recipe: Recipe
    selection: Selection
    batch: ExecutionBatch

    def read(self) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Return `SPANS` and `DROPS`."""
        with Store.open(self.server) as store:
            recipe = self.recipe
            return read_spans(store, recipe.source, self.selection, self.batch, recipe.metrics)


@dataclass(frozen=True, slots=True)
class TraceJob:
    """Phase 1 of one batch: the spans of whole executions."""

    folder: Draft
    recipe: Recipe
    number: int
    spans: SpansFile | StoredBatch
    newest: int | None
    """The end of the newest of all selected spans, in nanoseconds."""
    scope: CreditScope


@dataclass(frozen=True, slots=True)
class TraceSummary:
    """The results of phase 1 of a batch that the manifest records."""

    parts: list[Part]
    task_files: set[str]
    rewards: set[str]
    versions: dict[str, list[int]]
    mismatches: int
    """Calls of which two instruments recorded different responses."""


def trace_batch(job: TraceJob) -> TraceSummary:
    """Run phase 1 on a batch: write its wide tables, and the narrow ones that credit reads."""
    spans, unresolved = job.spans.read()
    traced = trace_executions(spans, job.recipe, job.newest, job.scope)
    folder, number = job.folder, job.number
    executions = traced.executions.with_columns(
        pl.col("source_spans").list.tail(1),
        *(pl.lit(None, pl.String).alias(name) for name in EXECUTION_CONTENTS),
        batch=pl.lit(number, pl.Int32),
    )
    folder.write_file("work/steps", number, traced.steps)
    folder.write_file("work/executions", number, executions)
    folder.write_file("work/rewards", number, traced.rewards)
    folder.write_file("work/drops", number, concat_table(DROPS, unresolved, traced.drops))
    tables = ("calls", "executions", "states")
    return TraceSummary(
        [folder.write_table(name, number, getattr(traced, name)) for name in tables],
        _rollout_attribute(spans, attributes.TASKS_DIGEST),
        _rollout_attribute(spans, attributes.REWARD_DIGEST),
        policy_versions(traced.calls),
        traced.calls["capture_mismatch"].count(),
    )


def _rollout_attribute(spans: pl.DataFrame, name: str) -> set[str]:
    """Return the values of an attribute on the rollout spans of the runner."""
    rollout_spans = spans.filter(name=attributes.SPAN_ROLLOUT, role=Role.RUNNER.value)
    return {value for span in iter_spans(rollout_spans) if (value := span.get(name))}


def credit_rounds(folder: Draft, recipe: Recipe) -> Iterator[pl.DataFrame]:
    """Yield the executions of each round of credit: whole waves, as few as the recipe allows.

    Where the estimator compares within a group, a round packs waves up to about `STEPS` calls;
    where it compares within a wave, a round is one wave; where it compares over time, one round
    holds all waves.
    """
    executions = pl.scan_parquet(folder.table_folder("work/executions"))
    if credit_reach(recipe) == "time":
        yield executions.sort("execution_id").collect()
        return
    calls = pl.col("llm_calls") + pl.col("tool_calls")
    waves = executions.group_by(WAVE).agg(calls=calls.sum()).collect().sort(WAVE, nulls_last=True)
    packed = (pl.col("calls").cum_sum() - pl.col("calls")) // STEPS
    number = packed if credit_reach(recipe) == "group" else pl.int_range(pl.len(), dtype=pl.Int64)
    wave = pl.struct(WAVE)
    for _, rows in waves.with_columns(round=number).group_by("round", maintain_order=True):
        round_waves = rows.select(wave.alias("wave"))["wave"]
        yield executions.filter(wave.is_in(round_waves.implode())).sort("execution_id").collect()


def credit_reach(recipe: Recipe) -> Reach:
    """Return the set of executions that change each other's advantage: group, wave or all time."""
    own = outcome_estimator(recipe.credit.outcome.estimator).reach
    return "wave" if own == "group" and recipe.filter.max_groups is not None else own


def credit_round(
    folder: Draft, recipe: Recipe, number: int, executions: pl.DataFrame, scope: CreditScope
) -> pl.DataFrame:
    """Run phase 2 on whole waves: write rewards and transitions by batch, and return `DROPS`."""
    ids = executions.select("execution_id", "batch")
    # a filter, not a join: polars pushes it down into the read of each file
    in_round = pl.col("execution_id").is_in(ids["execution_id"].implode())
    steps, rewards = (
        pl.scan_parquet(folder.table_folder(f"work/{name}")).filter(in_round).collect()
        for name in ("steps", "rewards")
    )
    credit = assign_credit(steps, executions, rewards, recipe, scope)
    trained = pl.col("execution_id").is_in(credit.trained_ids.implode())
    transitions = credit.transitions.with_columns(trained=trained).join(ids, "execution_id")
    for (batch,), rows in transitions.group_by("batch", maintain_order=True):
        folder.write_file(f"work/transitions/{batch}", number, rows.drop("batch"))
    gated_rewards = credit.rewards.join(ids, "execution_id", maintain_order="left")
    for (batch,), rows in gated_rewards.group_by("batch", maintain_order=True):
        folder.write_file(f"work/gated_rewards/{batch}", number, rows.drop("batch"))
    return credit.drops


@dataclass(frozen=True, slots=True)
class RowsJob:
    """Phase 3 of one batch, whose transitions have their credit."""

    folder: Draft
    recipe: Recipe
    number: int
    served: tuple[ServedPolicy, ...]
    """The policies whose calls without token ids are rendered."""


@dataclass(frozen=True, slots=True)
class RowsSummary:
    """The results of phase 3 of a batch that the manifest records."""

    parts: list[Part]
    drops: Counter[str]
    """Count by reason."""
    savings: Counter[str]
    token_sources: Counter[str]
    """Rows by the column `tokens`."""


def build_rows(job: RowsJob) -> RowsSummary:
    """Run phase 3 on a batch: write its rows and everything that was left out of them."""
    folder, number = job.folder, job.number
    transitions = _read_rounds(
        folder.table_folder(f"work/transitions/{number}"),
        TRANSITIONS.empty().with_columns(trained=False),
    )
    rewards = _read_rounds(folder.table_folder(f"work/gated_rewards/{number}"), REWARDS.empty())
    trained = transitions.filter("trained").drop("trained")
    columns = {*COLUMNS, *(READ if job.served else ())}
    calls = folder.read_file("calls", number, sorted(columns))
    executions = folder.read_file("work/executions", number)
    rows, unusable = samples(job.recipe, trained, calls, executions, job.served)
    drops = concat_table(DROPS, folder.read_file("work/drops", number), unusable)
    parts = [
        folder.write_table("rewards", number, rewards),
        folder.write_table("transitions", number, transitions.drop("trained")),
        folder.write_table("samples", number, rows),
        folder.write_table("drops", number, drops),
    ]
    return RowsSummary(
        parts, Counter(drops["reason"]), Counter(count_savings(rows)), Counter(rows["tokens"])
    )


def _read_rounds(folder: Path, empty: pl.DataFrame) -> pl.DataFrame:
    """Read what the rounds of credit wrote for a batch; `empty` if no round wrote anything."""
    return pl.read_parquet(folder) if folder.exists() else empty
