"""Which executions are read together: batches of about equal size, cut in the order of the store.

Executions that share a trace, or traces that share a session, a rollout or a link, are in one
batch, since a span may find its execution only among them. The cut depends on the traces alone, so
that the same traces give the same batches whatever works on them.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import polars as pl

from ltrain_collector.store import Store
from ltrain_transforms.recipe import Source
from ltrain_transforms.source import LINKED, SESSION, Batch, Selection, chosen, unit

SPANS = 10_000
"""Spans of a batch: 50 MB where a span has 5 KB."""


def plan(store: Store, source: Source, selection: Selection, spans: int = SPANS) -> list[Batch]:
    """Cut the selected executions into batches of about `spans` spans, at least one execution."""
    column = unit(source)
    where, params = chosen(source, selection)
    sizes = store.query(
        f"SELECT {column} AS unit, count() AS spans FROM otel.spans WHERE {where} "
        "GROUP BY unit ORDER BY unit",
        params,
    )
    groups: list[list[str]] = []
    for sql in _sharing(source, where):
        groups += store.query(sql, params)["units"].to_list()
    return list(_cut(sizes, _leaders(groups), spans))


def _sharing(source: Source, where: str) -> Iterator[str]:
    """Give the SQL of each way in which units belong together."""
    seen = f"FROM otel.spans WHERE {where}"
    several = "HAVING length(units) > 1"
    if source.execution == "rollout":
        yield f"SELECT groupUniqArray(RolloutId) AS units {seen} GROUP BY TraceId {several}"
        return
    traces = f"FROM otel.spans WHERE TraceId IN (SELECT TraceId {seen})"
    units = "SELECT groupUniqArray(TraceId) AS units"
    yield f"{units} {traces} AND RolloutId != '' GROUP BY RolloutId {several}"
    if source.execution == "session":
        yield f"{units} {traces} AND {SESSION} != '' GROUP BY {SESSION} {several}"
    yield f"SELECT arrayDistinct([TraceId, {LINKED}]) AS units {traces} AND {LINKED} != ''"


def _leaders(groups: Iterable[Sequence[str]]) -> dict[str, str]:
    """Give the first unit of those that each unit belongs together with."""
    leader: dict[str, str] = {}

    def first(unit: str) -> str:
        while (above := leader.get(unit, unit)) != unit:
            leader[unit] = leader.get(above, above)
            unit = above
        return unit

    for units in groups:
        least, *others = sorted({first(unit) for unit in units})
        leader |= dict.fromkeys(others, least)
    return {unit: first(unit) for unit in leader}


def _cut(sizes: pl.DataFrame, leaders: Mapping[str, str], spans: int) -> Iterator[Batch]:
    """Cut at every `spans` spans; a unit goes where its leader is."""
    if sizes.is_empty():
        return
    led = pl.DataFrame({"unit": list(leaders), "leader": list(leaders.values())})
    placed = (
        sizes.join(led.cast(pl.String), "unit", "left")
        .with_columns(leader=pl.coalesce("leader", "unit"))
        .with_columns(size=pl.col("spans").sum().over("leader"))
    )
    heads = placed.filter(pl.col("unit") == pl.col("leader")).sort("unit")
    numbered = heads.select("leader", number=(pl.col("size").cum_sum() - pl.col("size")) // spans)
    dense = numbered.with_columns(pl.col("number").rank("dense"))
    batches = placed.join(dense, "leader").sort("number", "unit")
    for _, members in batches.group_by("number", maintain_order=True):
        heads_only = members.filter(pl.col("unit") == pl.col("leader"))["unit"]
        first, last = heads_only[0], heads_only[-1]
        within = pl.col("unit").is_between(pl.lit(first), pl.lit(last))
        strangers = placed.filter(within).join(members, "unit", "anti")
        yield Batch(
            first=first,
            last=last,
            also=tuple(members.filter(~within)["unit"]),
            without=tuple(strangers["unit"]),
        )
