"""Reads and writes the values of a span: attributes, events, links, status and name.

The SDK makes one readable copy of an ended span and passes it to every processor in turn, so a
change by one processor is visible to the later ones.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from opentelemetry.attributes import BoundedAttributes
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.trace import Link, Status


class SpanField(NamedTuple):
    """The location of one value in a span."""

    part: str
    """One of attribute, event, link, event name, status and name."""
    number: int
    """Index of the event or link."""
    name: str


STATUS = SpanField("status", 0, "status")
NAME = SpanField("name", 0, "name")

NewValues = Mapping[SpanField, Any]
"""New values by field; None removes the value."""


def read_span_fields(span: ReadableSpan) -> dict[SpanField, Any]:
    """Return every value of a span."""
    fields: dict[SpanField, Any] = {NAME: span.name}
    if span.status.description:
        fields[STATUS] = span.status.description
    for name, value in (span.attributes or {}).items():
        fields[SpanField("attribute", 0, name)] = value
    for number, event in enumerate(span.events):
        fields[SpanField("event name", number, "event")] = event.name
        for name, value in (event.attributes or {}).items():
            fields[SpanField("event", number, name)] = value
    for number, link in enumerate(span.links):
        for name, value in (link.attributes or {}).items():
            fields[SpanField("link", number, name)] = value
    return fields


def write_span_fields(span: ReadableSpan, new: NewValues) -> None:
    """Write new values into a span."""
    bounded = BoundedAttributes(attributes=_attributes(span.attributes, "attribute", 0, new))
    bounded.dropped = span.dropped_attributes
    span._attributes = bounded
    parts = {field.part for field in new}
    if parts & {"event", "event name"}:
        span._events = [_event(event, number, new) for number, event in enumerate(span.events)]
    if "link" in parts:
        span._links = [
            Link(link.context, _attributes(link.attributes, "link", number, new))
            for number, link in enumerate(span.links)
        ]
    if STATUS in new:
        span._status = Status(span.status.status_code, new[STATUS])
    span._name = new.get(NAME, span.name)


def _event(event: Event, number: int, new: NewValues) -> Event:
    name = new.get(SpanField("event name", number, "event"), event.name)
    return Event(name, _attributes(event.attributes, "event", number, new), event.timestamp)


def _attributes(
    old: Mapping[str, Any] | None, part: str, number: int, new: NewValues
) -> dict[str, Any]:
    changed = {field.name: value for field, value in new.items() if field[:2] == (part, number)}
    removed = {name for name, value in changed.items() if value is None}
    return {
        name: value for name, value in {**(old or {}), **changed}.items() if name not in removed
    }
