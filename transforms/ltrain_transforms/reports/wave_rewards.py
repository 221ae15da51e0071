"""The results of a recipe on a run, by wave: rewards by rule, drops and samples."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from ltrain_collector.store import Store
from ltrain_transforms.datasets import derive, list_manifests
from ltrain_transforms.recipe import Recipe
from ltrain_transforms.reports.dataset import count_prompts
from ltrain_transforms.reports.waves import Wave
from ltrain_transforms.source import CreditScope, Selection, read_spans
from ltrain_transforms.tables import OTHER_SPAN

RULES = pl.Schema({"rule": pl.String(), "mean": pl.Float64()})
DROPPED = pl.Schema({"stage": pl.String(), "reason": pl.String(), "count": pl.Int64()})
PROMPTED = pl.Schema({"prompt": pl.String(), "calls": pl.Int64()})
SAMPLED = pl.Schema({"samples": pl.Int64(), "tokens": pl.Int64(), "executions": pl.Int64()})


@dataclass(frozen=True, slots=True)
class RecipeResults:
    rules: pl.DataFrame
    """`mode`, `wave`, `rule`, and the `mean` of its reward over the executions that count."""
    drops: pl.DataFrame
    """`mode`, `wave`, `stage`, `reason`, `count`."""
    other_spans: int
    """Number of spans that describe no call, such as those of transports."""
    prompts: pl.DataFrame
    """`mode`, `wave`, `prompt`, `calls`: under `serve.continue_tokens`."""
    samples: pl.DataFrame
    """`mode`, `wave`, and the counts of `samples`, trained `tokens` and their `executions`."""


Scan = Callable[[str], pl.LazyFrame]
"""Returns the rows of a derived table."""


def apply_recipe(
    store: Store,
    recipe: Recipe,
    run: str,
    waves: Sequence[Wave],
    report_status: Callable[[str], None],
) -> RecipeResults:
    """Apply a recipe to the waves of a run, with the tables of one wave in memory at a time."""
    results = _WaveResults()
    for mode, wave in ((each.mode, each.wave) for each in waves):
        report_status(f"{mode} wave {wave}")
        selection = Selection(run=run, mode=mode or None, wave=wave)
        spans, unresolved = read_spans(store, recipe.source, selection, metrics=recipe.metrics)
        spans = spans if mode else _without_mode(spans)
        tables = derive(spans, recipe, CreditScope((mode,))).tables
        results.add(mode, wave, _lazy_reader(tables), unresolved)
    return results.finish()


def read_results(home: Path, run: str, waves: Sequence[Wave]) -> RecipeResults | None:
    """Return the results in the datasets of a run's waves; None if there are none.

    These are of the recipe at the time of each build.
    """
    results, found = _WaveResults(), False
    keys = {f"{run}/{each.mode}/{each.wave}": (each.mode, each.wave) for each in waves}
    for path, manifest in list_manifests(home):
        own = list(manifest.get("waves", {}))
        if len(own) != 1 or own[0] not in keys:
            continue  # it is of another run, or of several waves
        found = True
        results.add(*keys[own[0]], _scan(path))
    return results.finish() if found else None


def _scan(path: Path) -> Scan:
    return lambda name: pl.scan_parquet(path / name)


class _WaveResults:
    """Collects the results of each wave."""

    def __init__(self) -> None:
        self._rules: list[pl.DataFrame] = []
        self._drops: list[pl.DataFrame] = []
        self._prompts: list[pl.DataFrame] = []
        self._samples: list[pl.DataFrame] = []
        self._other_spans = 0

    def add(self, mode: str, wave: int, scan: Scan, unresolved: pl.DataFrame | None = None) -> None:
        """Add a wave.

        Args:
            unresolved: the `DROPS` of spans without an execution, if the table lacks them.
        """
        place = (pl.lit(mode).alias("mode"), pl.lit(wave, pl.Int64).alias("wave"))
        self._rules.append(_rule_means(scan).select(*place, pl.all()))
        drops = scan("drops").collect()
        if unresolved is not None:
            drops = pl.concat([drops, unresolved])
        is_drop = pl.col("reason") != OTHER_SPAN
        self._other_spans += drops.filter(~is_drop).height
        self._drops.append(_count_drops(drops.filter(is_drop)).select(*place, pl.all()))
        self._prompts.append(count_prompts(scan("calls")).select(*place, pl.all()))
        self._samples.append(_count_samples(scan("samples")).select(*place, pl.all()))

    def finish(self) -> RecipeResults:
        """Return the results."""
        rules, drops = _concat(self._rules, RULES), _concat(self._drops, DROPPED)
        prompts, samples = _concat(self._prompts, PROMPTED), _concat(self._samples, SAMPLED)
        return RecipeResults(rules, drops, self._other_spans, prompts, samples)


def _lazy_reader(tables: dict[str, pl.DataFrame]) -> Scan:
    return lambda name: tables[name].lazy()


def _concat(frames: list[pl.DataFrame], columns: pl.Schema) -> pl.DataFrame:
    place = {"mode": pl.String(), "wave": pl.Int64()}
    return pl.concat([pl.DataFrame(schema=place | dict(columns)), *frames])


def _without_mode(spans: pl.DataFrame) -> pl.DataFrame:
    """Keep the executions without a mode, which are production traffic."""
    with_mode = spans.filter(pl.col("mode").is_not_null())["execution_id"]
    return spans.filter(~pl.col("execution_id").is_in(with_mode.implode()))


def _rule_means(scan: Scan) -> pl.DataFrame:
    drops, executions = scan("drops"), scan("executions")
    left_out = drops.filter(pl.col("stage") == "executions").select(execution_id="id")
    counting = executions.join(left_out, "execution_id", "anti").select(pl.len()).collect().item()
    rewards = scan("rewards").join(left_out, "execution_id", "anti").collect()
    mean = pl.col("value").sum() / max(counting, 1)
    return rewards.group_by("rule").agg(mean=mean).sort("rule")


def _count_drops(drops: pl.DataFrame) -> pl.DataFrame:
    counted = drops.group_by("stage", "reason").agg(count=pl.len().cast(pl.Int64))
    return counted.sort("stage", "reason")


def _count_samples(samples: pl.LazyFrame) -> pl.DataFrame:
    tokens = pl.col("response_mask").list.sum().cast(pl.Int64).sum()
    counts = samples.select(
        samples=pl.len().cast(pl.Int64),
        tokens=tokens.fill_null(0),
        executions=pl.col("execution_id").n_unique().cast(pl.Int64),
    )
    return counts.collect()
