"""Names in a recipe that nothing in its dataset bears: a misspelt one selects and compares nothing.

Refused they cannot be: a wave may lack an agent or a variable that the next one has.
"""

from collections.abc import Iterator
from typing import Any

import polars as pl

from ltrain_instrument.errors import UnknownName
from ltrain_transforms.dataset import Dataset


def in_vain(given: Dataset) -> Iterator[tuple[str, str]]:
    """Give each such key of the recipe, and what names there are."""
    recipe: dict[str, Any] = given.manifest["recipe"]
    llm = pl.scan_parquet(given.path / "calls").filter(kind="llm")
    borne = {name: _unique(llm, name) for name in ("policy", "agent", "node")}
    for policy in recipe["policy"]:
        if borne["policy"]:  # traffic that did not pass the gateway names none
            yield from _unknown("policy.name", "policy", [policy["name"]], borne["policy"])
        there = borne["agent"] | borne["node"]
        yield from _unknown("policy.agents", "agent or node", policy["agents"], there)
        yield from _unknown("policy.nodes", "node", policy["nodes"], borne["node"])
    step = recipe["credit"]["step"] or {"state": []}
    if step["state"]:
        there = _unique(pl.scan_parquet(given.path / "states"), "variable")
        yield from _unknown("credit.step.state", "variable", step["state"], there)


def _unique(rows: pl.LazyFrame, column: str) -> set[str]:
    return set(rows.select(pl.col(column).unique().drop_nulls()).collect().to_series())


def _unknown(key: str, kind: str, named: list[str], there: set[str]) -> Iterator[tuple[str, str]]:
    for name in named:
        if name not in there:
            yield key, str(UnknownName(kind, name, there or {"none is there"}))
