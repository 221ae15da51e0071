"""Where a span has values, and the way to change them: its own, its events', its links', its words.

The SDK makes one readable copy of a span when it ends and hands it to every processor in turn, so
what an early one changes there is what the later ones see.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from opentelemetry.attributes import BoundedAttributes
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.trace import Link, Status


class Place(NamedTuple):
    part: str
    """attribute, event, link, event name, status or name."""
    number: int
    """Of the event or link."""
    name: str


STATUS = Place("status", 0, "status")
NAME = Place("name", 0, "name")

New = Mapping[Place, Any]
"""Values by where they belong; None: the value goes."""


def values(span: ReadableSpan) -> dict[Place, Any]:
    """Give every value of a span."""
    found: dict[Place, Any] = {NAME: span.name}
    if span.status.description:
        found[STATUS] = span.status.description
    for name, value in (span.attributes or {}).items():
        found[Place("attribute", 0, name)] = value
    for number, event in enumerate(span.events):
        found[Place("event name", number, "event")] = event.name
        for name, value in (event.attributes or {}).items():
            found[Place("event", number, name)] = value
    for number, link in enumerate(span.links):
        for name, value in (link.attributes or {}).items():
            found[Place("link", number, name)] = value
    return found


def change(span: ReadableSpan, new: New) -> None:
    """Write values into a span."""
    own = BoundedAttributes(attributes=_attributes(span.attributes, "attribute", 0, new))
    own.dropped = span.dropped_attributes
    span._attributes = own
    parts = {place.part for place in new}
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


def _event(event: Event, number: int, new: New) -> Event:
    name = new.get(Place("event name", number, "event"), event.name)
    return Event(name, _attributes(event.attributes, "event", number, new), event.timestamp)


def _attributes(old: Mapping[str, Any] | None, part: str, number: int, new: New) -> dict[str, Any]:
    own = {place.name: value for place, value in new.items() if place[:2] == (part, number)}
    gone = {name for name, value in own.items() if value is None}
    return {name: value for name, value in {**(old or {}), **own}.items() if name not in gone}
