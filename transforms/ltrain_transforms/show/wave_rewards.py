"""The results of a recipe on a run, by wave: rewards by rule, drops and samples."""

from collections.abc import Callable
from dataclasses import dataclass

import polars as pl

from ltrain_collector.store import Store
from ltrain_transforms.datasets import alarms_by_wave, derive
from ltrain_transforms.recipe import Recipe
from ltrain_transforms.rewards import divergences
from ltrain_transforms.source import Selection, read_spans
from ltrain_transforms.tables import OTHER_SPAN

PLACE = ("mode", "wave")
RULES = pl.Schema({"rule": pl.String(), "mean": pl.Float64()})
DROPPED = pl.Schema({"stage": pl.String(), "reason": pl.String(), "count": pl.Int64()})
SAMPLED = pl.Schema({"samples": pl.Int64(), "tokens": pl.Int64()})


@dataclass(frozen=True, slots=True)
class RecipeResults:
    rules: pl.DataFrame
    """`mode`, `wave`, `rule`, and the `mean` of its reward over the executions that count."""
    drops: pl.DataFrame
    """`mode`, `wave`, `stage`, `reason`, `count`."""
    other_spans: int
    """Number of spans that describe no call, such as those of transports."""
    samples: pl.DataFrame
    """`mode`, `wave`, and the counts of `samples` and of trained `tokens`."""
    alarms: dict[str, list[str]]
    """By wave: sentences on drop reasons that correlate with low reward, and on rules that rise
    while the outcome does not."""


def apply_recipe(
    store: Store,
    recipe: Recipe,
    run: str,
    waves: pl.DataFrame,
    report_status: Callable[[str], None],
) -> RecipeResults:
    """Apply a recipe to the waves of a run, with the tables of one wave in memory at a time."""
    rules, drops, samples, other_spans = [], [], [], 0
    alarms: dict[str, list[str]] = {}
    for mode, wave in waves.select(PLACE).iter_rows():
        report_status(f"{mode} wave {wave}")
        place = (pl.lit(mode).alias("mode"), pl.lit(wave, pl.Int64).alias("wave"))
        spans, unresolved = read_spans(
            store, recipe.source, Selection(run=run, mode=mode or None, wave=wave)
        )
        spans = spans if mode else _without_mode(spans)
        tables = derive(spans, recipe, named_modes=(mode,)).tables
        alarms |= alarms_by_wave(_lazy_reader(tables))
        rules.append(_rule_means(tables).select(*place, pl.all()))
        all_drops = pl.concat([tables["drops"], unresolved])
        is_drop = pl.col("reason") != OTHER_SPAN
        other_spans += all_drops.filter(~is_drop).height
        drops.append(_count_drops(all_drops.filter(is_drop)).select(*place, pl.all()))
        samples.append(_count_samples(tables["samples"]).select(*place, pl.all()))
    means = _concat(rules, RULES)
    for wave, sentences in _divergences(means, recipe, waves).items():
        alarms.setdefault(f"{run}/train/{wave}", []).extend(sentences)
    return RecipeResults(
        means,
        _concat(drops, DROPPED),
        other_spans,
        _concat(samples, SAMPLED),
        alarms,
    )


def _divergences(means: pl.DataFrame, recipe: Recipe, waves: pl.DataFrame) -> dict[int, list[str]]:
    """Return the sentences on diverging rules by training wave."""
    train = pl.col("mode") == "train"
    by_wave: dict[str, dict[int, float]] = {}
    for rule, wave, mean in means.filter(train).select("rule", "wave", "mean").iter_rows():
        by_wave.setdefault(rule, {})[wave] = mean
    evaluations = [reward.name for reward in recipe.reward if reward.evaluation is not None]
    if not evaluations:
        return {}
    scores = [by_wave.pop(name, {}) for name in evaluations]
    numbers = waves.filter(train)["wave"].to_list()
    outcomes = {wave: sum(means.get(wave, 0.0) for means in scores) for wave in numbers}
    return divergences(by_wave, outcomes)


def _lazy_reader(tables: dict[str, pl.DataFrame]) -> Callable[[str], pl.LazyFrame]:
    return lambda name: tables[name].lazy()


def _concat(frames: list[pl.DataFrame], columns: pl.Schema) -> pl.DataFrame:
    place = {"mode": pl.String(), "wave": pl.Int64()}
    return pl.concat([pl.DataFrame(schema=place | dict(columns)), *frames])


def _without_mode(spans: pl.DataFrame) -> pl.DataFrame:
    """Keep the executions without a mode, which are production traffic."""
    with_mode = spans.filter(pl.col("mode").is_not_null())["execution_id"]
    return spans.filter(~pl.col("execution_id").is_in(with_mode.implode()))


def _rule_means(tables: dict[str, pl.DataFrame]) -> pl.DataFrame:
    left_out = tables["drops"].filter(pl.col("stage") == "executions")["id"]
    counts = ~pl.col("execution_id").is_in(left_out.implode())
    executions = max(tables["executions"].filter(counts).height, 1)
    rewards = tables["rewards"].filter(counts)
    return rewards.group_by("rule").agg(mean=pl.col("value").sum() / executions).sort("rule")


def _count_drops(drops: pl.DataFrame) -> pl.DataFrame:
    counted = drops.group_by("stage", "reason").agg(count=pl.len().cast(pl.Int64))
    return counted.sort("stage", "reason")


def _count_samples(samples: pl.DataFrame) -> pl.DataFrame:
    tokens = pl.col("response_mask").list.sum().cast(pl.Int64).sum()
    return samples.select(samples=pl.len().cast(pl.Int64), tokens=tokens.fill_null(0))
