"""What a recipe makes of a run, wave by wave: the parts of its reward by rule, and its drops."""

from collections.abc import Callable
from dataclasses import dataclass

import polars as pl

from ltrain_collector.store import Store
from ltrain_transforms.pipeline import derive
from ltrain_transforms.recipe import Recipe
from ltrain_transforms.selective_drops import alarms_by_wave
from ltrain_transforms.source import Selection, read_spans

PLACE = ("mode", "wave")
RULES = pl.Schema({"rule": pl.String(), "mean": pl.Float64()})
DROPPED = pl.Schema({"stage": pl.String(), "reason": pl.String(), "count": pl.Int64()})
SAMPLED = pl.Schema({"samples": pl.Int64(), "tokens": pl.Int64()})


@dataclass(frozen=True, slots=True)
class Judged:
    rules: pl.DataFrame
    """`mode`, `wave`, `rule`, `mean` of what it gave, over the executions that count."""
    drops: pl.DataFrame
    """`mode`, `wave`, `stage`, `reason`, `count`."""
    samples: pl.DataFrame
    """`mode`, `wave`, `samples`, `tokens` that are trained."""
    alarms: dict[str, list[str]]
    """By wave: which drops go with low reward."""


def judged(
    store: Store, recipe: Recipe, run: str, waves: pl.DataFrame, say: Callable[[str], None]
) -> Judged:
    """Derive every table of each wave in turn, in the memory of one, and keep the sums."""
    rules, drops, samples = [], [], []
    alarmed: dict[str, list[str]] = {}
    for mode, wave in waves.select(PLACE).iter_rows():
        say(f"{mode} wave {wave}")
        place = (pl.lit(mode).alias("mode"), pl.lit(wave, pl.Int64).alias("wave"))
        spans, unresolved = read_spans(
            store, recipe.source, Selection(run=run, mode=mode or None, wave=wave)
        )
        spans = spans if mode else _without_mode(spans)
        tables = derive(spans, recipe).tables
        alarmed |= alarms_by_wave(_lazily(tables))
        rules.append(_rules(tables).select(*place, pl.all()))
        lost = pl.concat([tables["drops"], unresolved])
        drops.append(_counted(lost).select(*place, pl.all()))
        samples.append(_trained(tables["samples"]).select(*place, pl.all()))
    return Judged(_whole(rules, RULES), _whole(drops, DROPPED), _whole(samples, SAMPLED), alarmed)


def _lazily(tables: dict[str, pl.DataFrame]) -> Callable[[str], pl.LazyFrame]:
    return lambda name: tables[name].lazy()


def _whole(frames: list[pl.DataFrame], columns: pl.Schema) -> pl.DataFrame:
    place = {"mode": pl.String(), "wave": pl.Int64()}
    return pl.concat([pl.DataFrame(schema=place | dict(columns)), *frames])


def _without_mode(spans: pl.DataFrame) -> pl.DataFrame:
    """Keep the executions that name no mode: production traffic."""
    named = spans.filter(pl.col("mode").is_not_null())["execution_id"]
    return spans.filter(~pl.col("execution_id").is_in(named.implode()))


def _rules(tables: dict[str, pl.DataFrame]) -> pl.DataFrame:
    left_out = tables["drops"].filter(pl.col("stage") == "executions")["id"]
    count = ~pl.col("execution_id").is_in(left_out.implode())
    executions = max(tables["executions"].filter(count).height, 1)
    rewards = tables["rewards"].filter(count)
    return rewards.group_by("rule").agg(mean=pl.col("value").sum() / executions).sort("rule")


def _counted(drops: pl.DataFrame) -> pl.DataFrame:
    counted = drops.group_by("stage", "reason").agg(count=pl.len().cast(pl.Int64))
    return counted.sort("stage", "reason")


def _trained(samples: pl.DataFrame) -> pl.DataFrame:
    tokens = pl.col("response_mask").list.sum().cast(pl.Int64).sum()
    return samples.select(samples=pl.len().cast(pl.Int64), tokens=tokens.fill_null(0))
