"""How two datasets differ: their recipes, their executions, and the credit of the same calls."""

from collections.abc import Iterator, Mapping
from typing import Any

import polars as pl

from ltrain_transforms.dataset import Dataset
from ltrain_transforms.manifest import KEYS
from ltrain_transforms.show.dataset import lineage
from ltrain_transforms.show.report import Cell, Facts, Grid, Report

EXAMPLES = 5
SAME = 1e-9
"""Advantages nearer than this are equal: sums of the same floats may differ by less."""

Parts = tuple[Facts | Grid, ...]


def report(given: Dataset, other: Dataset) -> Report:
    """Lay out how `given` differs from `other`."""
    recipes = tuple(recipe_keys(_recipe(given), _recipe(other)))
    counts = tuple((name, given.counts.get(name), other.counts.get(name)) for name in KEYS)
    names = (f"{given.id}", f"{other.id}")
    only = _only(given, other)
    moved = advantages(given, other)
    parts: Parts = (
        Facts("Lineage", tuple(_facts(given, other))),
        Grid("Recipe keys that differ", ("key", *names), recipes),
        Grid("Rows", ("table", *names), counts),
        Grid("Executions only in one", ("dataset", "executions", "for example"), only),
        *_moved(moved, names),
    )
    data = {
        "dataset": given.id,
        "against": other.id,
        "recipe": [list(row) for row in recipes],
        "rows": [list(row) for row in counts],
        "executions_only_in_one": [list(row) for row in only],
        "advantages": moved.to_dicts(),
    }
    same = " (the same rows)" if given.id == other.id else ""
    title = f"dataset {given.id} against {other.id}{same}"
    return Report(title, f"{given.path}, {other.path}", parts, data)


def recipe_keys(one: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[tuple[Cell, ...]]:
    """Give each key that differs and its two values; a table of a list goes by its name."""
    mine, theirs = dict(_flat(one)), dict(_flat(other))
    for key in sorted(mine | theirs):
        pair = mine.get(key, ABSENT), theirs.get(key, ABSENT)
        if pair[0] != pair[1]:
            yield key, str(pair[0]), str(pair[1])


ABSENT = "not there"


def _flat(value: Any, at: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _flat(inner, f"{at}.{key}" if at else str(key))
    elif isinstance(value, list) and value and isinstance(value[0], Mapping):
        for place, inner in enumerate(value):
            yield from _flat(inner, f"{at}[{inner.get('name', place)}]")
    else:
        yield at, value


def advantages(given: Dataset, other: Dataset) -> pl.DataFrame:
    """Join the transitions of both: `execution_id`, `call_id`, `mine`, `theirs`, `by` how much.

    Null is 'not there'; the largest difference comes first.
    """
    mine, theirs = (
        pl.scan_parquet(one.path / "transitions").select(
            "execution_id", "call_id", pl.col("advantage").alias(name)
        )
        for one, name in ((given, "mine"), (other, "theirs"))
    )
    keys = ["execution_id", "call_id"]
    joined = mine.join(theirs, keys, "full", coalesce=True, maintain_order="left_right")
    moved = (pl.col("mine") - pl.col("theirs")).abs()
    differ = pl.col("mine").is_null() | pl.col("theirs").is_null() | (moved > SAME)
    sizes = joined.filter(differ.fill_null(True)).with_columns(by=moved)
    return sizes.sort("by", *keys, descending=[True, False, False], nulls_last=True).collect()


def _moved(moved: pl.DataFrame, names: tuple[str, str]) -> Iterator[Grid]:
    both = moved.filter(pl.col("by").is_not_null())
    rows = (
        ("with another advantage", both.height),
        (f"only in {names[0]}", moved.filter(pl.col("theirs").is_null()).height),
        (f"only in {names[1]}", moved.filter(pl.col("mine").is_null()).height),
    )
    yield Grid("Calls of the policy", ("calls", "count"), rows)
    examples = both.head(EXAMPLES).select("call_id", "mine", "theirs", "by", "execution_id")
    columns = ("call", *names, "differ by", "execution")
    yield Grid("Advantages that differ most", columns, tuple(examples.iter_rows()))


def _only(given: Dataset, other: Dataset) -> tuple[tuple[Cell, ...], ...]:
    mine, theirs = (
        pl.scan_parquet(one.path / "executions").select("execution_id") for one in (given, other)
    )
    rows: list[tuple[Cell, ...]] = []
    for name, left, right in ((given.id, mine, theirs), (other.id, theirs, mine)):
        ids = left.join(right, "execution_id", "anti").collect().to_series().sort()
        rows.append((name, len(ids), ", ".join(ids.head(EXAMPLES))))
    return tuple(rows)


def _recipe(one: Dataset) -> dict[str, Any]:
    found: Any = one.manifest["recipe"]
    return dict(found)


def _facts(given: Dataset, other: Dataset) -> Iterator[tuple[str, str]]:
    """Give the lineage of both where it is alike, and beside each other where it is not."""
    both = zip(lineage(dict(given.manifest)), lineage(dict(other.manifest)), strict=True)
    for (name, mine), (_, theirs) in both:
        yield name, mine if mine == theirs else f"{mine}, against {theirs}"
