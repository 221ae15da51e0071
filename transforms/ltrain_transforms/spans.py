"""One span as a value, with its attributes parsed; the only place where their JSON is read."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl


@dataclass(frozen=True, slots=True)
class Span:
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
    events: tuple[tuple[str, Mapping[str, str]], ...]
    links: tuple[str, ...]

    def get(self, *names: str) -> str | None:
        """Give the first of these attributes that says something."""
        return next((text for name in names if (text := self.attributes.get(name))), None)

    def json(self, *names: str) -> Any:
        """Give the first of these attributes, parsed; text that is no JSON as it is."""
        return parsed(self.get(*names))

    def number(self, *names: str) -> float | None:
        """Give the first of these attributes as a number; null where it is none."""
        try:
            return float(self.get(*names) or "")
        except ValueError:
            return None

    def whole(self, *names: str) -> int | None:
        """Give the first of these attributes as an integer; null where it is none."""
        number = self.number(*names)
        return None if number is None or number != number else int(number)

    def flag(self, name: str) -> bool:
        """Say whether the attribute is there and true."""
        return (self.get(name) or "").lower() in ("true", "1")


def parsed(text: Any) -> Any:
    """Read JSON; what is no JSON stays as it is."""
    if not isinstance(text, str) or not text:
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text


COLUMNS = (
    *("execution_id", "trace_id", "span_id", "parent_id", "process", "scope", "name"),
    *("start", "end", "status", "message", "attributes", "events", "links"),
)


def each(spans: pl.DataFrame) -> Iterator[Span]:
    """Go through the rows of a frame of `SPANS`."""
    for row in spans.select(COLUMNS).iter_rows():
        status, message, attributes, events, links = row[9:]
        cells: tuple[Any, ...] = (
            *row[:9],
            status == "Error",
            message or "",
            json.loads(attributes or "{}"),
            tuple((name, values) for name, values in json.loads(events or "[]")),
            tuple(links or ()),
        )
        yield Span(*cells)
