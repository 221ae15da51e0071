"""A dataset: what is in it, where it comes from, and how it differs from another."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl

from ltrain_transforms.dataset import Dataset
from ltrain_transforms.manifest import KEYS, MANIFEST
from ltrain_transforms.savings import count_savings
from ltrain_transforms.selective_drops import alarm_messages
from ltrain_transforms.show.report import Cell, Facts, Grid, Report, named
from ltrain_transforms.show.vain import in_vain


def of_home(home: Path) -> Iterator[tuple[Path, str]]:
    """Give the folder and the id of each dataset of a home."""
    for path in sorted(home.glob(f"datasets/*/{MANIFEST}")):
        try:
            yield path.parent, str(json.loads(path.read_text())["id"])
        except (OSError, ValueError, KeyError, TypeError):
            continue  # half written or another's: `Dataset.open` says so where it is asked for


def report(given: Dataset) -> Report:
    """Lay out a dataset's content and lineage."""
    manifest: dict[str, Any] = given.manifest
    vain = tuple(in_vain(given))
    alarms = tuple(alarm_messages(manifest.get("alarms", {})))  # of older datasets nothing is known
    parts = (
        Facts("Lineage", tuple(lineage(manifest))),
        *((Facts("Named in vain", vain),) if vain else ()),
        *((Facts("Alarms", alarms),) if alarms else ()),
        Grid("Rows", ("table", "rows"), tuple((name, given.counts[name]) for name in KEYS)),
        _executions(given),
        Grid("Distribution", NUMBERS, tuple(_numbers(given))),
        Grid("Merging", ("what", "count"), tuple(_merging(given).items())),
        Grid("Policies", ("policy", "versions sampled"), tuple(_policies(manifest))),
        drops(given.drops),
    )
    return Report(f"dataset {given.id}", str(given.path), parts, manifest)


def drops(rows: pl.DataFrame) -> Grid:
    """Count drops by stage and reason."""
    keys = ("stage", "reason")
    counted = rows.group_by(keys).agg(count=pl.len(), meaning=pl.col("detail").min()).sort(keys)
    columns = ("stage", "reason", "count", "meaning")
    return Grid("Drops", columns, tuple(counted.select(columns).iter_rows()))


def lineage(manifest: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Tell what a dataset was made from."""
    yield "store", str(manifest["store"])
    yield "watermark", f"{manifest['watermark']}: the latest of its spans was stored then"
    yield "selected", named([f"{k} {v}" for k, v in manifest["parameters"].items()])
    yield "recipe", str(manifest["recipe_digest"])
    yield "task files", named(manifest["task_files"])
    yield "reward functions", named(manifest["rewards"])
    yield "base", named([f"{k} {v}" for k, v in manifest["base"].items()])


def _policies(manifest: dict[str, Any]) -> Iterator[tuple[Cell, ...]]:
    for name, versions in manifest["policy_versions"].items():
        yield name, named(versions)


def _executions(given: Dataset) -> Grid:
    """Count executions by run, mode, wave and outcome."""
    keys = ["run_id", "mode", "wave", "outcome"]
    counted = (
        _scan(given, "executions")
        .group_by(keys)
        .agg(count=pl.len())
        .sort(keys, nulls_last=True)
        .collect()
    )
    columns = ("run", "mode", "wave", "outcome", "executions")
    return Grid("Executions", columns, tuple(counted.iter_rows()))


NUMBERS = ("of", "count", "least", "10%", "median", "mean", "90%", "most")


def _numbers(given: Dataset) -> Iterator[tuple[Cell, ...]]:
    """Give a few numbers of rewards, advantages and lengths."""
    whole = pl.col("call_id").is_null()
    outcome = pl.col("value").sum()
    worth = _scan(given, "rewards").filter(whole).group_by("execution_id").agg(outcome)
    samples = _scan(given, "samples")
    mask = pl.col("response_mask")
    told = {
        "outcome of an execution": worth.select("value"),
        "reward of a call": _scan(given, "transitions").select("reward"),
        "advantage of a call": _scan(given, "transitions").select("advantage"),
        "prompt tokens of a row": samples.select(pl.col("prompt_ids").list.len()),
        "response tokens of a row": samples.select(mask.list.len()),
        "trained tokens of a row": samples.select(mask.list.sum().cast(pl.Int64)),
        "calls of a row": samples.select(pl.col("transition_ids").list.len()),
    }
    for name, column in told.items():
        yield name, *_spread(column.collect().to_series())


def _spread(values: pl.Series) -> tuple[Cell, ...]:
    numbers = values.cast(pl.Float64)
    marks = (numbers.quantile(0.1), numbers.median(), numbers.mean(), numbers.quantile(0.9))
    least, most = numbers.min(), numbers.max()
    return (len(numbers), *(_number(one) for one in (least, *marks, most)))


def _merging(given: Dataset) -> dict[str, int]:
    """Count what merging saved and why rows begin, a file at a time."""
    total: Counter[str] = Counter()
    for path in sorted((given.path / "samples").glob("*.parquet")):
        total.update(count_savings(pl.read_parquet(path, columns=MERGED)))
    return {name.replace("_", " "): count for name, count in sorted(total.items())}


MERGED = [
    *("prompt_ids", "response_ids", "response_mask"),
    *("call_offsets", "transition_ids", "begins"),
]


def _number(value: Any) -> float | None:
    if value is None:
        return None
    whole = float(value).is_integer() and abs(value) < 1e15  # beyond, floats skip whole numbers
    return int(value) if whole else float(value)


def _scan(given: Dataset, table: str) -> pl.LazyFrame:
    return pl.scan_parquet(given.path / table)
