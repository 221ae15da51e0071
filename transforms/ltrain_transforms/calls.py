"""Spans -> calls: each component invocation once, whatever number of spans describe it."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

import polars as pl

from ltrain_transforms import requesters
from ltrain_transforms.dialects import describe
from ltrain_transforms.grouping import Described, group
from ltrain_transforms.merging import Call, merge, place, row
from ltrain_transforms.spans import Span, each
from ltrain_transforms.tables import CALLS

DERIVED = ("seq", "reads", "previous_status", "repeat", "gap")
"""Columns made from the finished rows."""


def calls(spans: pl.DataFrame) -> pl.DataFrame:
    """Make `calls` from `SPANS`."""
    executions: defaultdict[str, list[Span]] = defaultdict(list)
    for span in each(spans):
        executions[span.execution_id].append(span)
    rows = [row(call) for members in executions.values() for call in _of_execution(members)]
    schema = {name: dtype for name, dtype in CALLS.schema.items() if name not in DERIVED}
    # column by column: polars takes twice as long over a list of rows
    columns = {name: [cells.get(name) for cells in rows] for name in schema}
    return CALLS.select(_derived(pl.DataFrame(columns, schema).lazy())).collect()


def _of_execution(spans: Sequence[Span]) -> Iterable[Call]:
    described = [
        Described(span, partial) for span in spans if (partial := describe(span)) is not None
    ]
    found = sorted(map(merge, group(spans, described)), key=_order)
    enclosing = {span.span_id: span for span in spans}
    by_span = {one.span.span_id: call for call in found for one in call.spans}
    for call in found:
        place(call, enclosing, by_span)
    requesters.assign(found)
    return found


def _order(call: Call) -> tuple[int, int, str]:
    """By start; of two that start together, the enclosing one first."""
    return call.outer.start, -call.outer.end, call.call_id


def _derived(calls: pl.LazyFrame) -> pl.LazyFrame:
    """Add what needs neighbours; rows are in call order within an execution."""
    within = "execution_id"
    order = ("start", pl.col("end").neg(), "call_id")
    ordered = calls.sort(within, *order, maintain_order=True).with_columns(
        seq=pl.int_range(pl.len()).over(within), reads=pl.lit(None, pl.List(pl.String))
    )
    alike = [within, "kind", "name", "input"]
    return ordered.with_columns(
        previous_status=pl.col("status").shift(1).over(within, "kind"),
        repeat=pl.when(pl.col("input").is_not_null())
        .then(pl.int_range(pl.len()).over(alike))
        .otherwise(0),
        gap=(pl.col("start") - pl.col("end").shift(1).over(within)) / 1e9,
    )
