"""Divide the selected executions into batches of about equal size, in the order of their ids.

Executions that share a trace, and traces that share a session, a rollout, a link or a model call,
are in one batch: a span is assigned to its execution by the spans around it. The batches depend
only on the traces, so the same traces give the same batches, whichever process reads them.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import polars as pl

from ltrain_collector.store import Store
from ltrain_transforms.recipe import Source
from ltrain_transforms.source.call_keys import related_traces, traces_of_answers
from ltrain_transforms.source.reader import (
    LINKED_TRACE_SQL,
    ExecutionBatch,
    Selection,
    batch_column,
    selection_condition,
)
from ltrain_transforms.traces import sender_roles

SPANS_PER_BATCH = 10_000
"""Spans of a batch: 50 MB where a span has 5 KB."""


def plan_batches(
    store: Store, source: Source, selection: Selection, spans: int = SPANS_PER_BATCH
) -> list[ExecutionBatch]:
    """Return batches of about `spans` spans, with at least one execution each."""
    column = batch_column(source)
    where, params = selection_condition(source, selection)
    sizes = store.query(
        f"SELECT {column} AS unit, count() AS spans FROM otel.spans WHERE {where} "
        "GROUP BY unit ORDER BY unit",
        params,
    )
    groups: list[list[str]] = []
    for sql in _related_units(source, where):
        groups += store.query(sql, params)["units"].to_list()
    return list(_divide(sizes, _first_units(groups), spans))


def _related_units(source: Source, where: str) -> Iterator[str]:
    """Yield one SQL query for each reason why units must be in one batch."""
    selected = f"FROM otel.spans WHERE {where}"
    several = "HAVING length(units) > 1"
    if source.execution == "rollout":
        yield f"SELECT groupUniqArray(RolloutId) AS units {selected} GROUP BY TraceId {several}"
        return
    traces = f"FROM otel.spans WHERE TraceId IN (SELECT TraceId {selected})"
    units = "SELECT groupUniqArray(TraceId) AS units"
    yield f"{units} {traces} AND RolloutId != '' GROUP BY RolloutId {several}"
    if source.execution == "session":
        yield f"{units} {traces} AND SessionId != '' GROUP BY SessionId {several}"
    linked = f"SELECT arrayDistinct([TraceId, {LINKED_TRACE_SQL}]) AS units"
    yield f"{linked} {traces} AND {LINKED_TRACE_SQL} != ''"
    yield related_traces(traces)
    trust = sender_roles.trusted_senders(source.trust)
    yield traces_of_answers(traces, sender_roles.role_condition(sender_roles.Role.GATEWAY, trust))


def _first_units(groups: Iterable[Sequence[str]]) -> dict[str, str]:
    """Return, for each unit, the first of the units that must be in one batch with it."""
    parent: dict[str, str] = {}

    def root(unit: str) -> str:
        while (above := parent.get(unit, unit)) != unit:
            parent[unit] = parent.get(above, above)
            unit = above
        return unit

    for units in groups:
        first, *others = sorted({root(unit) for unit in units})
        parent |= dict.fromkeys(others, first)
    return {unit: root(unit) for unit in parent}


def _divide(
    sizes: pl.DataFrame, first_units: Mapping[str, str], spans: int
) -> Iterator[ExecutionBatch]:
    """Start a batch at every `spans` spans; a unit goes to the batch of its first unit."""
    if sizes.is_empty():
        return
    firsts = pl.DataFrame({"unit": list(first_units), "first": list(first_units.values())})
    units = (
        sizes.join(firsts.cast(pl.String), "unit", "left")
        .with_columns(first=pl.coalesce("first", "unit"))
        .with_columns(size=pl.col("spans").sum().over("first"))
    )
    heads = units.filter(pl.col("unit") == pl.col("first")).sort("unit")
    numbered = heads.select("first", number=(pl.col("size").cum_sum() - pl.col("size")) // spans)
    dense = numbered.with_columns(pl.col("number").rank("dense"))
    batches = units.join(dense, "first").sort("number", "unit")
    for _, members in batches.group_by("number", maintain_order=True):
        heads_only = members.filter(pl.col("unit") == pl.col("first"))["unit"]
        first, last = heads_only[0], heads_only[-1]
        within = pl.col("unit").is_between(pl.lit(first), pl.lit(last))
        others = units.filter(within).join(members, "unit", "anti")
        also = tuple(members.filter(~within)["unit"])
        yield ExecutionBatch(first, last, also, without=tuple(others["unit"]))
