"""The spans of a call as the store has them, and the exceptions that they recorded."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ltrain_collector.store import Store

EXCEPTION = "exception"
"""The name of an event of OpenTelemetry's conventions: its attributes begin with it, too."""
MAX_SPANS = 100
"""Spans of a call that are read."""


@dataclass(frozen=True, slots=True)
class Fault:
    """An exception that a span recorded."""

    name: str
    message: str
    stack: str


def read_call_spans(store: Store, call: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the spans of a call, a row of `calls`, as rows of `otel.spans`."""
    spans = sorted({str(call["call_id"]), *(call["source_spans"] or ())})[:MAX_SPANS]
    found = store.query(
        "SELECT * FROM otel.spans WHERE TraceId = {trace:String} "
        "AND SpanId IN {spans:Array(String)} ORDER BY Timestamp, SpanId",
        {"trace": str(call["trace_id"]), "spans": spans},
    )
    return found.to_dicts()


def read_faults(store: Store, call: Mapping[str, Any]) -> list[Fault]:
    """Return the exceptions of a call's spans; an exception of two spans once."""
    spans = read_call_spans(store, call)
    return list(dict.fromkeys(fault for span in spans for fault in _faults(span)))


def _faults(span: Mapping[str, Any]) -> Iterator[Fault]:
    events = zip(span["Events.Name"] or (), span["Events.Attributes"] or (), strict=True)
    for name, attributes in events:
        if name == EXCEPTION:
            parts = ("type", "message", "stacktrace")
            yield Fault(*(str(attributes.get(f"{EXCEPTION}.{part}", "")) for part in parts))
