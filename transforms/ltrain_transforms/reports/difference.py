"""The report on the differences of two datasets: recipes, executions and advantages."""

from collections.abc import Iterator, Mapping
from typing import Any

import polars as pl

from ltrain_transforms.datasets import KEYS, Dataset
from ltrain_transforms.reports.dataset import lineage_facts
from ltrain_transforms.reports.report import Cell, Facts, Grid, Report

EXAMPLES = 5
SAME = 1e-9
"""Two advantages that differ by less are equal: float sums depend on the order of addition."""

Parts = tuple[Facts | Grid, ...]


def difference_report(first: Dataset, second: Dataset) -> Report:
    """Return the report on how `first` differs from `second`."""
    recipes = tuple(recipe_differences(_recipe(first), _recipe(second)))
    counts = tuple((name, first.counts.get(name), second.counts.get(name)) for name in KEYS)
    names = (first.id, second.id)
    only = _executions_in_one(first, second)
    changed = advantage_differences(first, second)
    parts: Parts = (
        Facts("Lineage", tuple(_lineage(first, second))),
        Grid("Recipe keys that differ", ("key", *names), recipes),
        Grid("Rows", ("table", *names), counts),
        Grid("Executions only in one", ("dataset", "executions", "for example"), only),
        *_advantages(changed, names),
    )
    data = {
        "dataset": first.id,
        "against": second.id,
        "recipe": [list(row) for row in recipes],
        "rows": [list(row) for row in counts],
        "executions_only_in_one": [list(row) for row in only],
        "advantages": changed.to_dicts(),
    }
    same = " (the same rows)" if first.id == second.id else ""
    title = f"dataset {first.id} against {second.id}{same}"
    return Report(title, f"{first.path}, {second.path}", parts, data)


def recipe_differences(
    first: Mapping[str, Any], second: Mapping[str, Any]
) -> Iterator[tuple[Cell, ...]]:
    """Yield each key that differs and its two values; an entry of a list is keyed by its name."""
    mine, theirs = dict(_flatten(first)), dict(_flatten(second))
    for key in sorted(mine | theirs):
        pair = mine.get(key, ABSENT), theirs.get(key, ABSENT)
        if pair[0] != pair[1]:
            yield key, str(pair[0]), str(pair[1])


ABSENT = "not there"


def _flatten(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted key and the value of each leaf."""
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _flatten(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and value and isinstance(value[0], Mapping):
        for index, inner in enumerate(value):
            yield from _flatten(inner, f"{path}[{inner.get('name', index)}]")
    else:
        yield path, value


def advantage_differences(first: Dataset, second: Dataset) -> pl.DataFrame:
    """Return the transitions that differ: `execution_id`, `call_id`, `mine`, `theirs`, `by`.

    `mine` and `theirs` are the advantages in `first` and `second`, null if the transition is not
    in it. `by` is their distance; the largest comes first.
    """
    mine, theirs = (
        dataset.scan("transitions").select(
            "execution_id", "call_id", pl.col("advantage").alias(name)
        )
        for dataset, name in ((first, "mine"), (second, "theirs"))
    )
    keys = ["execution_id", "call_id"]
    joined = mine.join(theirs, keys, "full", coalesce=True, maintain_order="left_right")
    distance = (pl.col("mine") - pl.col("theirs")).abs()
    differ = pl.col("mine").is_null() | pl.col("theirs").is_null() | (distance > SAME)
    differences = joined.filter(differ.fill_null(True)).with_columns(by=distance)
    return differences.sort("by", *keys, descending=[True, False, False], nulls_last=True).collect()


def _advantages(changed: pl.DataFrame, names: tuple[str, str]) -> Iterator[Grid]:
    both = changed.filter(pl.col("by").is_not_null())
    rows = (
        ("with another advantage", both.height),
        (f"only in {names[0]}", changed.filter(pl.col("theirs").is_null()).height),
        (f"only in {names[1]}", changed.filter(pl.col("mine").is_null()).height),
    )
    yield Grid("Calls of the policy", ("calls", "count"), rows)
    examples = both.head(EXAMPLES).select("call_id", "mine", "theirs", "by", "execution_id")
    columns = ("call", *names, "differ by", "execution")
    yield Grid("Advantages that differ most", columns, tuple(examples.iter_rows()))


def _executions_in_one(first: Dataset, second: Dataset) -> tuple[tuple[Cell, ...], ...]:
    """Return for each dataset its id, and the count and examples of executions only in it."""
    mine, theirs = (
        dataset.scan("executions").select("execution_id") for dataset in (first, second)
    )
    rows: list[tuple[Cell, ...]] = []
    for name, left, right in ((first.id, mine, theirs), (second.id, theirs, mine)):
        ids = left.join(right, "execution_id", "anti").collect().to_series().sort()
        rows.append((name, len(ids), ", ".join(ids.head(EXAMPLES))))
    return tuple(rows)


def _recipe(dataset: Dataset) -> dict[str, Any]:
    recipe: Any = dataset.manifest["recipe"]
    return dict(recipe)


def _lineage(first: Dataset, second: Dataset) -> Iterator[tuple[str, str]]:
    """Yield each fact of the lineage once if both datasets agree, else both values."""
    both = zip(lineage_facts(first.manifest), lineage_facts(second.manifest), strict=True)
    for (name, mine), (_, theirs) in both:
        yield name, mine if mine == theirs else f"{mine}, against {theirs}"
