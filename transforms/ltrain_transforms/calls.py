"""Spans -> calls: each component invocation once, whatever number of spans describe it."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any

import polars as pl

from ltrain_transforms import faults, requesters
from ltrain_transforms.dialects import describe
from ltrain_transforms.faults import Fault
from ltrain_transforms.grouping import Described, group
from ltrain_transforms.measured import measured
from ltrain_transforms.merging import MESSAGES, Call, Cells, merge, place, row
from ltrain_transforms.spans import Span, each
from ltrain_transforms.tables import CALLS
from ltrain_transforms.tokens import lists
from ltrain_transforms.untrusted import FAILURES

LISTS = ("tokens", "source_spans")
"""Cells that become lists, all at once."""
LATER = ("reads", "action", "turn_index")
"""Columns that `states` fills."""


def calls(spans: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return `calls`, made of `SPANS`, and as `DROPS` what could not be read."""
    columns: dict[str, list[Any]] = {name: [] for name in Cells._fields}
    broken: list[Fault] = []
    in_order = spans.sort("execution_id", maintain_order=True)
    # one execution at a time, and column by column: its spans are still in the core's cache
    for _, members in groupby(each(in_order), key=attrgetter("execution_id")):
        for cells in _rows(members, broken):
            for column, cell in zip(columns.values(), cells, strict=True):
                column.append(cell)
    plain = _framed(columns, broken)
    tokens, damaged = measured(columns["tokens"])
    source_spans = _source_spans(columns["source_spans"])
    recorded = pl.when(pl.col("prompt_token_ids").is_not_null()).then("token_source")
    whole = plain.with_columns(source_spans, *tokens, *_neighbours()).with_columns(
        token_source=recorded
    )
    return CALLS.select(whole.lazy()).collect(), faults.drops([*broken, *damaged])


def _framed(columns: dict[str, list[Any]], broken: list[Fault]) -> pl.DataFrame:
    """Return the cells that have a type of their own; rows that do not fit leave `columns`."""
    schema = {name: CALLS.schema[name] for name in columns if name not in LISTS}
    try:
        return pl.DataFrame({name: columns[name] for name in schema}, schema)
    # broad: Polars raises TypeError, OverflowError and its own on a cell of another type
    except FAILURES as error:
        height = len(columns["call_id"])
        unfit = [index for index in range(height) if not _fits(columns, schema, index)]
        if not unfit:
            raise
        for index in reversed(unfit):
            cells = {name: column.pop(index) for name, column in columns.items()}
            execution = cells["execution_id"]
            broken += [
                faults.of_span(span_id, "unreadable", error, execution=execution)
                for span_id in cells["source_spans"]
            ]
        return _framed(columns, broken)


def _fits(columns: dict[str, list[Any]], schema: dict[str, pl.DataType], index: int) -> bool:
    try:
        pl.DataFrame({name: [columns[name][index]] for name in schema}, schema)
    except FAILURES:  # as above
        return False
    return True


def _rows(spans: Iterable[Span], broken: list[Fault]) -> Iterable[Cells]:
    """Return the cells of one execution's calls in their order; add the drops to `broken`."""
    by_id, doubled = faults.unique(spans)
    broken += [_dropped(span, "duplicate_span") for span in doubled]
    cyclic = faults.cyclic(by_id)
    described = []
    for span in by_id.values():
        if (reason := faults.reason(span, cyclic)) is not None:
            broken.append(_dropped(span, reason))
            continue
        partial, failures = describe(span)
        if partial is not None:
            described.append(Described(span, partial))
            broken += [faults.of_reader(span.span_id, *failure) for failure in failures]
        elif failures:
            broken.append(_dropped(span, "unreadable", failures[-1][1]))
    # no walk to the ancestors passes a span that closes a cycle
    enclosing = {name: span for name, span in by_id.items() if name not in cyclic}
    return _readable(enclosing, described, broken)


def _dropped(span: Span, reason: str, error: Exception | None = None) -> Fault:
    return faults.of_span(span.span_id, reason, error, execution=span.execution_id)


def _readable(
    by_id: dict[str, Span], described: Sequence[Described], broken: list[Fault]
) -> list[Cells]:
    """Return the cells of the calls, without the spans that cannot be put together."""
    while True:
        try:
            found = _placed(by_id, described)
            cells = list(map(row, found))
        # broad: messages are parsed when they are compared, so what a span holds may fail here
        # too; each span that fails by itself becomes a drop, or all where none does
        except FAILURES as error:
            failed = [one for one in described if not _stands(one)] or described
            broken += [_dropped(one.span, "unreadable", error) for one in failed]
            ids = {one.span.span_id for one in failed}
            described = [one for one in described if one.span.span_id not in ids]
            continue
        broken += [fault for call in found for fault in _unreadable(call)]
        return cells


def _stands(one: Described) -> bool:
    """Return whether a span is a call by itself."""
    try:
        list(map(row, _placed({one.span.span_id: one.span}, [one])))
    except FAILURES:  # as above: it is counted there
        return False
    return True


def _placed(by_id: dict[str, Span], described: Sequence[Described]) -> list[Call]:
    found = sorted(map(merge, group(by_id, described)), key=_order)
    by_span = {one.span.span_id: call for call in found for one in call.spans}
    for call in found:
        place(call, by_id, by_span)
    requesters.assign(found)
    return found


def _order(call: Call) -> tuple[int, int, str]:
    """By start; of two that start together, the enclosing one first."""
    return call.outer.start, -call.outer.end, call.call_id


def _unreadable(call: Call) -> Iterator[Fault]:
    for name in MESSAGES:
        held = call.merged.get(name)
        if held is not None and held.broken:
            yield faults.of_attribute(call.call_id, held.attribute, "not_json")


def _neighbours() -> list[pl.Expr]:
    """Give what needs the calls before; rows are those of an execution after another's."""
    execution, kind = "execution_id", "kind"
    earlier = pl.int_range(pl.len(), dtype=pl.Int32).over(execution, kind, "name", "input")
    since = pl.col("start") - pl.col("end").shift().over(execution)
    # by numpy: polars multiplies by the inverse of a constant, which rounds twice
    seconds = since.map_batches(lambda gaps: pl.Series(gaps.to_numpy() / 1e9), pl.Float64)
    return [
        pl.int_range(pl.len(), dtype=pl.Int32).over(execution).alias("seq"),
        pl.col("status").shift().over(execution, kind).alias("previous_status"),
        pl.when(pl.col("input").is_null()).then(0).otherwise(earlier).alias("repeat"),
        seconds.fill_nan(None).alias("gap"),
        *(pl.lit(None, CALLS.schema[name]).alias(name) for name in LATER),
    ]


def _source_spans(spans: Sequence[Sequence[str]]) -> pl.Series:
    flat = pl.Series([span for each_call in spans for span in each_call], dtype=pl.String)
    return lists(flat, list(map(len, spans))).alias("source_spans")
