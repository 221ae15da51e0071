"""Drops for spans, and for attributes of a call, that cannot be read.

An invalid span describes no call; it still counts as an ancestor of other spans.
"""

from collections.abc import Iterable, Mapping, Sequence

import polars as pl

from ltrain_transforms.calls import membership, unknown_dialects
from ltrain_transforms.tables import DROPS
from ltrain_transforms.traces import MAX_ATTRIBUTE_CHARS, Span, error_text

SPAN_REASONS = {
    "too_large": f"its attributes are larger than {MAX_ATTRIBUTE_CHARS >> 20} million characters",
    "duplicate_span": membership.REASONS["duplicate_span"],
    "backwards": "it ends before it starts",
    "cyclic_parents": "it is its own ancestor",
    "unreadable": "no reader makes a call of it",
    "unknown_dialect": f"it looks like a call, and {unknown_dialects.PROBLEM}: "
    f"{unknown_dialects.REMEDY}",
}
"""Reasons for whole spans, stage `spans`; the id is `span:execution`."""

ATTRIBUTE_REASONS = {
    "not_json": "{} is not the JSON that it must be; the call is kept without it",
    "no_logprobs": "{} came without log-probabilities; the call is kept without its tokens",
    "token_count": "{}, response ids and log-probabilities disagree in number, or with their "
    "counts; the call is kept without them",
}
"""Reasons for one attribute of a call, stage `calls`; the id is `span:attribute`."""

DIALECT_REASONS = {"unreadable": "{} cannot be read of the span; the call is kept without it"}
"""Reasons for one dialect of a span, stage `calls`; the id is `span:dialect`."""

STATES_REASONS = {"unreadable": "its states cannot be read; its calls are kept without them"}
"""Reasons for an execution, stage `states`."""

DropRow = tuple[str, str, str, str]
"""A row of `DROPS`."""


def span_drop(
    span_id: str, reason: str, error: Exception | None = None, *, execution: str = ""
) -> DropRow:
    """Return the drop of a span of `execution`."""
    sentence = (
        SPAN_REASONS[reason] if error is None else f"{SPAN_REASONS[reason]}: {error_text(error)}"
    )
    return "spans", f"{span_id}:{execution}" if execution else span_id, reason, sentence


def unknown_drop(span: Span, names: Sequence[str]) -> DropRow:
    """Return the drop of a span that looks like a call by these attributes."""
    most = unknown_dialects.SHOWN_NAMES
    shown = ", ".join(names[:most]) + (", …" if len(names) > most else "")
    writer = unknown_dialects.writer_name(span.scope, span.scope_version)
    sentence = SPAN_REASONS["unknown_dialect"].format(shown, writer)
    return "spans", f"{span.span_id}:{span.execution_id}", "unknown_dialect", sentence


def dialect_drop(span_id: str, dialect: str, error: Exception) -> DropRow:
    """Return the drop of a dialect that raised; the id is `span:dialect`."""
    sentence = DIALECT_REASONS["unreadable"].format(dialect)
    return "calls", f"{span_id}:{dialect}", "unreadable", f"{sentence}: {error_text(error)}"


def states_drop(execution: str, error: Exception) -> DropRow:
    return "states", execution, "unreadable", f"{STATES_REASONS['unreadable']}: {error_text(error)}"


def attribute_drop(span_id: str, name: str, reason: str) -> DropRow:
    return "calls", f"{span_id}:{name}", reason, ATTRIBUTE_REASONS[reason].format(name)


def drops_frame(rows: Sequence[DropRow]) -> pl.DataFrame:
    """Return the rows as a frame of `DROPS`."""
    return pl.DataFrame(rows, DROPS.schema, orient="row")


def unique_spans(spans: Iterable[Span]) -> tuple[dict[str, Span], list[Span]]:
    """Return the spans of one execution by id, and the duplicates.

    Of two spans with one id the trusted one counts, else the first: otherwise an agent that knows
    the id of a gateway's span could replace it.
    """
    by_id: dict[str, Span] = {}
    duplicates: list[Span] = []
    for span in spans:
        first = by_id.setdefault(span.span_id, span)
        if first is span:
            continue
        if span.trusted and not first.trusted:
            by_id[span.span_id] = span
            duplicates.append(first)
        else:
            duplicates.append(span)
    return by_id, duplicates


def span_error(span: Span, cyclic: set[str]) -> str | None:
    """Return the reason why a span cannot be read; None where it can."""
    if span.fault is not None:
        return span.fault
    if span.end < span.start:
        return "backwards"
    return "cyclic_parents" if span.span_id in cyclic else None


def cyclic_spans(spans: Mapping[str, Span]) -> set[str]:
    """Return the ids of spans in a cycle of parents: the untrusted ones, or all if none is.

    So an agent that puts its own span above and below a gateway's span loses only its own.
    """
    acyclic: set[str] = set()
    invalid: set[str] = set()
    for span_id in spans:
        path: dict[str, None] = {}
        above: str | None = span_id
        while above is not None and above in spans and above not in acyclic:
            if above in path:
                cycle = list(path)[list(path).index(above) :]
                untrusted = [one for one in cycle if not spans[one].trusted]
                invalid.update(untrusted or cycle)
                break
            path[above] = None
            above = spans[above].parent_id
        acyclic.update(path)
    return invalid
