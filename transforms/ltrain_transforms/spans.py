"""One span as a value, with its attributes parsed; the only place where their JSON is read."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import orjson
import polars as pl

LARGEST = 64 << 20
"""Characters of one span's attributes beyond which they are not read."""
TOGETHER = 256
"""Spans that are taken out of their frame at once."""

Event = tuple[str, Mapping[str, str]]


class Log(NamedTuple):
    """A log record that was written inside a span."""

    name: str
    body: str
    """Text, or JSON."""
    attributes: Mapping[str, str]
    time: int
    """Nanoseconds since the epoch."""
    role: str
    """Whose word it is: one of `roles.Role`."""
    inside: bool
    """Whether it was written in this span, else only in its execution."""


class Span(NamedTuple):
    execution_id: str
    trace_id: str
    span_id: str
    parent_id: str | None
    process: str | None
    scope: str
    name: str
    start: int
    """Nanoseconds since the epoch."""
    end: int
    failed: bool
    message: str
    attributes: Mapping[str, str]
    """The store keeps every value as text: numbers in decimal, lists as JSON."""
    events_text: str
    links: tuple[str, ...]
    names: str
    """Of its attributes, each behind a line break."""
    fault: str | None = None
    """Why the attributes are not read: `too_large`; then there are none."""
    logs_text: str | None = None
    role: str = "agent"
    """Whose word it is: one of `roles.Role`."""
    trusted: bool = False
    """Whether the recipe trusts its sender."""

    @property
    def events(self) -> tuple[Event, ...]:
        """Name and attributes of each event."""
        found = parsed(self.events_text)
        listed = found if isinstance(found, list) else []
        return tuple((name, values) for name, values in listed if isinstance(values, dict))

    @property
    def logs(self) -> list[Log]:
        """Its log records, in order of time."""
        return [_log(*said) for said in orjson.loads(self.logs_text or "[]")]

    def get(self, *names: str) -> str | None:
        """Give the first of these attributes that says something."""
        attributes = self.attributes
        for name in names:
            if text := attributes.get(name):
                return text
        return None

    def json(self, *names: str) -> Any:
        """Give the first of these attributes, parsed; text that is no JSON as it is."""
        return parsed(self.get(*names))

    def whole(self, *names: str) -> int | None:
        """Give the first of these attributes as an integer; null where it is none."""
        text = self.get(*names)
        if text is None:
            return None
        if text.isdecimal() and len(text) < 19:
            return int(text)
        try:
            number = float(text)
        except ValueError:
            return None
        return int(number) if abs(number) < 1 << 63 else None

    def flag(self, name: str) -> bool:
        """Say whether the attribute is there and true."""
        return (self.attributes.get(name) or "").lower() in ("true", "1")


LONE_SURROGATE = re.compile(r"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")


def parsed(text: Any) -> Any:
    """Read JSON; what is no JSON stays as it is."""
    if not isinstance(text, str) or not text:
        return text
    try:
        return orjson.loads(text)
    except ValueError:
        return _leniently(text)


def _leniently(text: str) -> Any:
    """Read what Python writes beyond the standard: NaN, and halves of a surrogate pair."""
    try:
        return json.loads(LONE_SURROGATE.sub(r"\\ufffd", text))
    except (ValueError, RecursionError):
        return text


COLUMNS = (
    *("execution_id", "trace_id", "span_id", "parent_id", "process", "scope", "name"),
    *("start", "end", "status", "message", "attributes", "events", "links", "logs"),
    *("role", "trusted"),
)


def each(spans: pl.DataFrame) -> Iterator[Span]:
    """Go through the rows of a frame of `SPANS`."""
    for row in _rows(spans.select(COLUMNS)):
        status, message, attributes, events, links, logs, role, trusted = row[9:]
        attributes, fault = _bounded(attributes or {})
        said = (status == "Error", message or "", attributes, events or "[]", tuple(links or ()))
        names = "\n".join(("", *attributes))
        yield Span._make((*row[:9], *said, names, fault, logs, role or "agent", bool(trusted)))


def _rows(frame: pl.DataFrame) -> Iterator[tuple[Any, ...]]:
    """Like `iter_rows`, at a third of its cost: a column at a time, few enough for the cache."""
    for some in frame.iter_slices(TOGETHER):
        yield from zip(*(column.to_list() for column in some.get_columns()), strict=True)


def _bounded(attributes: dict[str, str]) -> tuple[dict[str, str], str | None]:
    if sum(map(len, attributes.values())) > LARGEST:
        return {}, "too_large"
    return attributes, None


def _log(name: str | None, body: str | None, text: str, *rest: Any) -> Log:
    attributes = parsed(text)
    return Log(name or "", body or "", attributes if isinstance(attributes, dict) else {}, *rest)
