"""The three phases of a build on files: what a worker does with one batch, and the credit between.

A phase reads what the one before it left in the draft, so any process, on any machine that sees the
folder, may do a batch.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from ltrain_instrument import attributes
from ltrain_transforms.estimators import REACH, Reach
from ltrain_transforms.manifest import versions
from ltrain_transforms.parts import Draft, Part
from ltrain_transforms.pipeline import credited, traced
from ltrain_transforms.recipe import Recipe
from ltrain_transforms.roles import Role
from ltrain_transforms.samples import COLUMNS, samples
from ltrain_transforms.savings import count_savings
from ltrain_transforms.selection import concat_table
from ltrain_transforms.spans import iter_spans
from ltrain_transforms.tables import DROPS, REWARDS, TRANSITIONS

STEPS = 250_000
"""Calls that are credited together, unless one wave has more: some 200 bytes each in memory."""

WAVE = ("run_id", "mode", "wave")


@dataclass(frozen=True, slots=True)
class Batch:
    """Spans of whole executions to trace."""

    folder: Draft
    recipe: Recipe
    number: int
    spans: Path
    unresolved: pl.DataFrame
    """`DROPS`: spans of theirs that belong to no execution."""
    newest: int | None
    """When the newest of all selected spans ended, in nanoseconds."""


@dataclass(frozen=True, slots=True)
class Traced:
    """What a batch says for the manifest."""

    parts: list[Part]
    task_files: set[str]
    rewards: set[str]
    versions: dict[str, list[int]]
    mismatches: int
    """Calls of which two instruments heard different answers."""


def trace(batch: Batch) -> Traced:
    """Phase 1 of a batch: its wide tables are written for good, what credit needs beside them."""
    spans = pl.read_ipc(batch.spans)
    batch.spans.unlink()  # the mapping keeps it as long as it is needed
    found = traced(spans, batch.recipe, batch.newest)
    folder, number = batch.folder, batch.number
    executions = found.executions.with_columns(
        pl.col("source_spans").list.tail(1), batch=pl.lit(number, pl.Int32)
    )
    folder.keep("work/steps", number, found.steps)
    folder.keep("work/executions", number, executions)
    folder.keep("work/rewards", number, found.rewards)
    folder.keep("work/drops", number, concat_table(DROPS, batch.unresolved, found.drops))
    tables = ("calls", "executions", "states")
    return Traced(
        [folder.write(name, number, getattr(found, name)) for name in tables],
        _told(spans, attributes.TASKS_DIGEST),
        _told(spans, attributes.REWARD_DIGEST),
        versions(found.calls),
        found.calls["capture_mismatch"].count(),
    )


def _told(spans: pl.DataFrame, name: str) -> set[str]:
    closing = spans.filter(name=attributes.SPAN_ROLLOUT, role=Role.RUNNER.value)
    return {said for span in iter_spans(closing) if (said := span.get(name))}


def rounds(folder: Draft, recipe: Recipe) -> Iterator[pl.DataFrame]:
    """Give the executions that are credited together: as few as the recipe allows, whole waves.

    Waves are packed, about `STEPS` calls a round, where each group stands for itself; an estimator
    over a batch has a wave a round; one that goes through time has them all.
    """
    executions = pl.scan_parquet(folder.table("work/executions"))
    if reach(recipe) == "time":
        yield executions.sort("execution_id").collect()
        return
    calls = pl.col("llm_calls") + pl.col("tool_calls")
    waves = executions.group_by(WAVE).agg(calls=calls.sum()).collect().sort(WAVE, nulls_last=True)
    packed = (pl.col("calls").cum_sum() - pl.col("calls")) // STEPS
    number = packed if reach(recipe) == "group" else pl.int_range(pl.len(), dtype=pl.Int64)
    wave = pl.struct(WAVE)
    for _, together in waves.with_columns(round=number).group_by("round", maintain_order=True):
        chosen = together.select(wave.alias("wave"))["wave"]
        yield executions.filter(wave.is_in(chosen.implode())).sort("execution_id").collect()


def reach(recipe: Recipe) -> Reach:
    """Say how far apart two executions may be that change each other's advantage."""
    own = REACH.get(recipe.credit.outcome.estimator, "wave")
    return "wave" if own == "group" and recipe.filter.max_groups is not None else own


def credit(folder: Draft, recipe: Recipe, number: int, executions: pl.DataFrame) -> pl.DataFrame:
    """Phase 2 of whole waves: leaves each batch its rewards and transitions, and gives `DROPS`."""
    ids = executions.select("execution_id", "batch")
    # a filter, not a join: each file is cut down as it is read
    asked = pl.col("execution_id").is_in(ids["execution_id"].implode())
    steps, rewards = (
        pl.scan_parquet(folder.table(f"work/{name}")).filter(asked).collect()
        for name in ("steps", "rewards")
    )
    found = credited(steps, executions, rewards, recipe)
    kept = pl.col("execution_id").is_in(found.kept.implode())
    rows = found.transitions.with_columns(kept=kept).join(ids, "execution_id")
    for (batch,), members in rows.group_by("batch", maintain_order=True):
        folder.keep(f"work/transitions/{batch}", number, members.drop("batch"))
    given = found.rewards.join(ids, "execution_id", maintain_order="left")
    for (batch,), members in given.group_by("batch", maintain_order=True):
        folder.keep(f"work/settled/{batch}", number, members.drop("batch"))
    return found.drops


@dataclass(frozen=True, slots=True)
class Credited:
    """A batch whose transitions have their credit."""

    folder: Draft
    recipe: Recipe
    number: int


@dataclass(frozen=True, slots=True)
class Joined:
    """What a batch's rows say for the manifest."""

    parts: list[Part]
    drops: Counter[str]
    """How many, by reason."""
    savings: Counter[str]


def join(batch: Credited) -> Joined:
    """Phase 3 of a batch: its rows, and all that was left out of it."""
    folder, number = batch.folder, batch.number
    path, settled = (folder.table(f"work/{name}/{number}") for name in ("transitions", "settled"))
    made = pl.read_parquet(path) if path.exists() else TRANSITIONS.empty().with_columns(kept=False)
    given = pl.read_parquet(settled) if settled.exists() else REWARDS.empty()
    trained = made.filter("kept").drop("kept")
    calls = folder.read("calls", number, list(COLUMNS))
    executions = folder.read("work/executions", number)
    rows, unusable = samples(batch.recipe, trained, calls, executions)
    drops = concat_table(DROPS, folder.read("work/drops", number), unusable)
    parts = [
        folder.write("rewards", number, given),
        folder.write("transitions", number, made.drop("kept")),
        folder.write("samples", number, rows),
        folder.write("drops", number, drops),
    ]
    return Joined(parts, Counter(drops["reason"]), Counter(count_savings(rows)))
