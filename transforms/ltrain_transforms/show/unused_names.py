"""Names in a recipe that do not occur in its dataset, for example misspelt ones.

These are warnings: a name may be absent from one wave and present in the next.
"""

from collections.abc import Iterator
from typing import Any

import polars as pl

from ltrain_instrument.errors import UnknownName
from ltrain_transforms.datasets import Dataset


def unknown_names(dataset: Dataset) -> Iterator[tuple[str, str]]:
    """Yield each key of the recipe with an unknown name, and a sentence with the known names."""
    recipe: dict[str, Any] = dataset.manifest["recipe"]
    llm_calls = pl.scan_parquet(dataset.path / "calls").filter(kind="llm")
    known = {name: _unique(llm_calls, name) for name in ("policy", "agent", "node")}
    for policy in recipe["policy"]:
        if known["policy"]:  # empty if no call passed the gateway
            yield from _unknown("policy.name", "policy", [policy["name"]], known["policy"])
        agents = known["agent"] | known["node"]
        yield from _unknown("policy.agents", "agent or node", policy["agents"], agents)
        yield from _unknown("policy.nodes", "node", policy["nodes"], known["node"])
    step = recipe["credit"]["step"] or {"state": []}
    if step["state"]:
        variables = _unique(pl.scan_parquet(dataset.path / "states"), "variable")
        yield from _unknown("credit.step.state", "variable", step["state"], variables)


def _unique(rows: pl.LazyFrame, column: str) -> set[str]:
    return set(rows.select(pl.col(column).unique().drop_nulls()).collect().to_series())


def _unknown(key: str, kind: str, names: list[str], known: set[str]) -> Iterator[tuple[str, str]]:
    for name in names:
        if name not in known:
            yield key, str(UnknownName(kind, name, known or {"none is there"}))
