"""Spans -> calls: one row for each component invocation, however many spans describe it."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any

import polars as pl

from ltrain_transforms.calls import requesters, span_errors
from ltrain_transforms.calls.call import Call
from ltrain_transforms.calls.grouping import group_spans
from ltrain_transforms.calls.merging import (
    CELL_NAMES,
    MESSAGE_FIELDS,
    call_cells,
    merge_spans,
    place_call,
)
from ltrain_transforms.calls.span_errors import DropRow
from ltrain_transforms.calls.tokens import id_choices, id_lists, logprob_choices, to_lists
from ltrain_transforms.calls.unknown_dialects import unknown_attributes
from ltrain_transforms.dialects import Tokens, describe
from ltrain_transforms.recipe import failed_results
from ltrain_transforms.tables import CALLS, CellSource, columns_from
from ltrain_transforms.traces import (
    FAILURES,
    ComparableHistory,
    Span,
    comparable_history,
    continues,
    iter_spans,
    read_messages,
)

LISTS = ("tokens", "source_spans")
"""Columns that become lists, for all calls at once."""
STATE_COLUMNS = tuple(column.name for column in columns_from(CellSource.STATES))
"""Columns that the stage `states` fills."""


def calls(spans: pl.DataFrame, tool_error: Sequence[str] = ()) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return `CALLS` made from `SPANS`, and the spans that could not be read as `DROPS`.

    Args:
        tool_error: `source.tool_error`, as in `mark_failed_tools`.
    """
    columns: dict[str, list[Any]] = {name: [] for name in CELL_NAMES}
    dropped: list[DropRow] = []
    in_order = spans.sort("execution_id", maintain_order=True)
    # one execution at a time, and column by column: its spans are still in the processor's cache
    for _, members in groupby(iter_spans(in_order), key=attrgetter("execution_id")):
        for cells in _rows(members, dropped):
            for column, cell in zip(columns.values(), cells, strict=True):
                column.append(cell)
    frame = mark_failed_tools(_frame(columns, dropped), tool_error)
    tokens, damaged = check_tokens(columns["tokens"])
    source_spans = _source_spans(columns["source_spans"])
    token_source = pl.when(pl.col("prompt_token_ids").is_not_null()).then("token_source")
    joined = frame.with_columns(source_spans, *tokens, *_neighbours())
    complete = joined.with_columns(continued_choices(joined), token_source=token_source)
    return CALLS.select(complete.lazy()).collect(), span_errors.drops_frame([*dropped, *damaged])


def _frame(columns: dict[str, list[Any]], dropped: list[DropRow]) -> pl.DataFrame:
    """Return the columns but `LISTS`; rows with a cell of a wrong type are removed and dropped."""
    schema = {name: CALLS.schema[name] for name in columns if name not in LISTS}
    try:
        return pl.DataFrame({name: columns[name] for name in schema}, schema)
    # broad: Polars raises TypeError, OverflowError and its own errors on a cell of a wrong type
    except FAILURES as error:
        height = len(columns["call_id"])
        invalid = [index for index in range(height) if not _fits(columns, schema, index)]
        if not invalid:
            raise
        for index in reversed(invalid):
            cells = {name: column.pop(index) for name, column in columns.items()}
            execution = cells["execution_id"]
            dropped += [
                span_errors.span_drop(span_id, "unreadable", error, execution=execution)
                for span_id in cells["source_spans"]
            ]
        return _frame(columns, dropped)


def _fits(columns: dict[str, list[Any]], schema: dict[str, pl.DataType], index: int) -> bool:
    try:
        pl.DataFrame({name: [columns[name][index]] for name in schema}, schema)
    except FAILURES:  # as above
        return False
    return True


def _rows(spans: Iterable[Span], dropped: list[DropRow]) -> Iterable[tuple[Any, ...]]:
    """Return the cells of one execution's calls in their order; append drops to `dropped`."""
    by_id, duplicates = span_errors.unique_spans(spans)
    dropped += [_drop(span, "duplicate_span") for span in duplicates]
    cyclic = span_errors.cyclic_spans(by_id)
    described, unknown = [], []
    for span in by_id.values():
        if (reason := span_errors.span_error(span, cyclic)) is not None:
            dropped.append(_drop(span, reason))
            continue
        partial, failures = describe(span)
        if partial is not None:
            described.append(Call(span, partial))
            dropped += [span_errors.dialect_drop(span.span_id, *failure) for failure in failures]
        elif failures:
            dropped.append(_drop(span, "unreadable", failures[-1][1]))
        elif names := unknown_attributes(span):
            unknown.append((span, names))
    known = {one.span.scope for one in described}  # a writer whose calls are read is known
    dropped += [span_errors.unknown_drop(*each) for each in unknown if each[0].scope not in known]
    # without the spans that close a cycle, every path of ancestors ends
    enclosing = {name: span for name, span in by_id.items() if name not in cyclic}
    return _merge_readable(enclosing, described, dropped)


def _drop(span: Span, reason: str, error: Exception | None = None) -> DropRow:
    return span_errors.span_drop(span.span_id, reason, error, execution=span.execution_id)


def _merge_readable(
    by_id: dict[str, Span], described: Sequence[Call], dropped: list[DropRow]
) -> list[tuple[Any, ...]]:
    """Return the cells of the calls, without the spans that cannot be merged."""
    while True:
        try:
            merged = _merged_calls(by_id, described)
            cells = list(map(call_cells, merged))
        # broad: messages are parsed when they are compared, so a span's content may raise here too;
        # each span that raises by itself becomes a drop, or all where none does
        except FAILURES as error:
            failed = [one for one in described if not _is_readable(one)] or described
            dropped += [_drop(one.span, "unreadable", error) for one in failed]
            ids = {one.span.span_id for one in failed}
            described = [one for one in described if one.span.span_id not in ids]
            continue
        dropped += [fault for call in merged for fault in _message_drops(call)]
        return cells


def _is_readable(one: Call) -> bool:
    """Return whether a span can be read as a call by itself."""
    try:
        list(map(call_cells, _merged_calls({one.span.span_id: one.span}, [one])))
    except FAILURES:  # as above; the caller makes it a drop
        return False
    return True


def _merged_calls(by_id: dict[str, Span], described: Sequence[Call]) -> list[Call]:
    merged = sorted(map(merge_spans, group_spans(by_id, described)), key=_order)
    by_span = {one.span.span_id: call for call in merged for one in call.singles}
    for call in merged:
        place_call(call, by_id, by_span)
    requesters.assign_requesters(merged)
    return merged


def _order(call: Call) -> tuple[int, int, str]:
    """Sort key: by start; of two that start together, the enclosing one first."""
    return call.span.start, -call.span.end, call.call_id


def _message_drops(call: Call) -> Iterator[DropRow]:
    for name in MESSAGE_FIELDS:
        messages = call.partial.get(name)
        if messages is not None and messages.broken:
            yield span_errors.attribute_drop(call.call_id, messages.attribute, "not_json")


def _neighbours() -> list[pl.Expr]:
    """Return the columns that depend on earlier calls; the rows of an execution are adjacent."""
    execution, kind = "execution_id", "kind"
    earlier = pl.int_range(pl.len(), dtype=pl.Int32).over(execution, kind, "name", "input")
    since = pl.col("start") - pl.col("end").shift().over(execution)
    # NumPy: Polars multiplies by the inverse of a constant, which rounds twice
    seconds = since.map_batches(lambda gaps: pl.Series(gaps.to_numpy() / 1e9), pl.Float64)
    return [
        pl.int_range(pl.len(), dtype=pl.Int32).over(execution).alias("seq"),
        pl.col("status").shift().over(execution, kind).alias("previous_status"),
        pl.when(pl.col("input").is_null()).then(0).otherwise(earlier).alias("repeat"),
        seconds.fill_nan(None).alias("gap"),
        *(pl.lit(None, CALLS.schema[name]).alias(name) for name in STATE_COLUMNS),
    ]


def _source_spans(spans: Sequence[Sequence[str]]) -> pl.Series:
    flat = pl.Series([span for each_call in spans for span in each_call], dtype=pl.String)
    return to_lists(flat, list(map(len, spans))).alias("source_spans")


TOKEN_COLUMNS = ("prompt_token_ids", "response_token_ids", "response_logprobs")
NO_TOKENS = Tokens(None, None, None, None, None, "", "")


def check_tokens(tokens: Sequence[Tokens | None]) -> tuple[list[pl.Series], list[DropRow]]:
    """Return the columns `TOKEN_COLUMNS`, and the drops of tokens that cannot be used.

    A truncated attribute must not be trained: ids are used only where the prompt, the response,
    the log-probabilities and the recorded counts agree.

    Args:
        tokens: the undecoded tokens of each call, or None.
    """
    every = [one or NO_TOKENS for one in tokens]
    prompts, responses, logprobs = (
        [one.prompt for one in every],
        [one.response for one in every],
        [one.logprobs for one in every],
    )
    columns = (id_lists(prompts), id_choices(responses), logprob_choices(logprobs))
    frame = pl.DataFrame(dict(zip(TOKEN_COLUMNS, columns, strict=True))).with_columns(
        pl.Series("prompt", [one.prompt_count for one in every], pl.Int64),
        pl.Series("response", [one.response_count for one in every], pl.Int64),
        pl.Series("has_logprobs", [text is not None for text in logprobs], pl.Boolean),
    )
    marked = frame.with_columns(reason=_reason())
    usable = marked.select(
        pl.when(pl.col("reason").is_null()).then(name).alias(name) for name in TOKEN_COLUMNS
    )
    damaged = [
        span_errors.attribute_drop(one.span_id, one.attribute, reason)
        for one, reason in zip(every, marked["reason"], strict=True)
        if reason and one is not NO_TOKENS
    ]
    return usable.get_columns(), damaged


def _reason() -> pl.Expr:
    prompt, response, logprobs = map(pl.col, TOKEN_COLUMNS)
    lengths = response.list.eval(pl.element().list.len())
    logprob_lengths = logprobs.list.eval(pl.element().list.len())
    actual = {"prompt": prompt.list.len(), "response": lengths.list.sum()}
    counted = [(pl.col(name) == length).fill_null(True) for name, length in actual.items()]
    readable = prompt.is_not_null() & (response.list.len() > 0) & (logprobs.list.len() > 0)
    return (
        pl.when(~pl.col("has_logprobs")).then(pl.lit("no_logprobs"))
        .when(~readable.fill_null(False)).then(pl.lit("not_json"))
        .when(~pl.all_horizontal(*counted, (lengths == logprob_lengths).fill_null(False)))
        .then(pl.lit("token_count"))
    )  # fmt: skip


COLUMNS = ("execution_id", "kind", "seq", "input", "output", "response_token_ids")


def continued_choices(calls: pl.DataFrame) -> pl.Series:
    """Return the column `choice` of `CALLS`: null for a call with one choice, or an unknown one.

    The messages of the later calls of an execution decide. A choice is continued by a call whose
    input begins with the input of the answer and that choice. Thinking is not compared, because
    clients leave it out.
    """
    rows = calls.select(COLUMNS).with_row_index().filter(pl.col("kind") == "llm")
    several = rows.filter(pl.col("response_token_ids").list.len() > 1)
    cells: list[int | None] = [None] * calls.height
    concerned = rows.join(several, "execution_id", "semi").sort("seq")
    for execution in concerned.partition_by("execution_id"):
        for index, choice in _find_each(execution.to_dicts()):
            cells[index] = choice
    return pl.Series("choice", cells, CALLS.schema["choice"])


def _find_each(calls: Sequence[dict[str, Any]]) -> Iterator[tuple[int, int | None]]:
    """Yield the index of each call with several choices, and the choice that is continued."""
    histories = [_history(call["input"]) for call in calls]
    for place, (call, prompt) in enumerate(zip(calls, histories, strict=True)):
        if len(call["response_token_ids"] or ()) > 1:
            yield call["index"], _continued(call, prompt, histories[place + 1 :])


def _continued(
    call: dict[str, Any], prompt: ComparableHistory, later: Sequence[ComparableHistory]
) -> int | None:
    """Return the only choice that one of the later histories continues.

    None if there is none, or if several differ: agents that search continue more than one.
    """
    ids, answers = call["response_token_ids"], _history(call["output"])
    if not prompt or len(answers) != len(ids):
        return None
    continued = [
        index
        for index, answer in enumerate(answers)
        if any(continues(history, (*prompt, answer)) for history in later)
    ]
    same_tokens = all(ids[index] == ids[continued[0]] for index in continued)
    return continued[0] if continued and same_tokens else None


def _history(text: str | None) -> ComparableHistory:
    """Return the messages in a comparable form; none if they cannot be read."""
    try:
        return comparable_history(read_messages(text), thinking=False)
    except FAILURES:  # any text may be in a message
        return ()


ERROR_TYPE = "tool_error"
"""The error type of a tool that failed by its text."""


def mark_failed_tools(calls: pl.DataFrame, patterns: Sequence[str]) -> pl.DataFrame:
    """Return the calls, where a tool whose result matches one of `patterns` has failed.

    Args:
        patterns: names of `failed_results`, or regular expressions of Rust's `regex`, whose time is
            linear in the text.
    """
    if not patterns:
        return calls
    result = pl.col("result")
    matches = pl.any_horizontal(
        result.str.contains(failed_results().get(pattern, pattern)) for pattern in patterns
    )
    failed = ((pl.col("kind") == "tool") & (pl.col("status") == "ok") & matches).fill_null(False)
    return calls.with_columns(
        status=pl.when(failed).then(pl.lit("error")).otherwise("status"),
        error_type=pl.when(failed).then(pl.lit(ERROR_TYPE)).otherwise("error_type"),
    )
