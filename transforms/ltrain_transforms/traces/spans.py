"""One span as a value: its attributes as text, parsed by `untrusted` when a reader needs them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import orjson
import polars as pl

from ltrain_transforms.traces import untrusted
from ltrain_transforms.traces.untrusted import parse_json

MAX_ATTRIBUTE_CHARS = 64 << 20
"""Largest size of one span's attributes; larger ones are not read."""
CHUNK = 256
"""Rows that are taken out of the frame at once."""

ELSEWHERE = ""
"""In the place of the spans of other executions."""

Event = tuple[str, Mapping[str, str]]


class Log(NamedTuple):
    """A log record of one execution, at the span it was written in or at the first span."""

    name: str
    body: str
    """Text, or JSON."""
    attributes: Mapping[str, str]
    time: int
    """Nanoseconds since the epoch."""
    role: str
    """Who wrote it: one of `roles.Role`."""
    in_span: bool
    """Whether it was written in this span; else only in its execution."""
    severity: int = 0
    """The severity number; 0: unknown."""
    among: Sequence[str] = ()
    """The innermost spans in which it may have been written, if it names none; `ELSEWHERE` for
    those of other executions."""


class Exemplar(NamedTuple):
    """A measurement of a metric that names its span."""

    name: str
    """The metric."""
    value: float
    unit: str
    attributes: Mapping[str, str]
    """Those of the data point, and those that a view of the metric left out."""
    time: int
    """Nanoseconds since the epoch."""
    scope: str
    role: str
    """Who wrote it: one of `roles.Role`."""


class Span(NamedTuple):
    """A row of `SPANS`."""

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
    """Every value is text, as in the store: numbers in decimal, lists as JSON."""
    events_text: str
    links: tuple[str, ...]
    attribute_names: str
    """The names of its attributes, each after a line break."""
    fault: str | None = None
    """Why `attributes` is empty although the span has some: `too_large`."""
    logs_text: str | None = None
    role: str = "agent"
    """Who wrote it: one of `roles.Role`."""
    trusted: bool = False
    """Whether the recipe trusts its sender."""
    scope_version: str = ""
    exemplars_text: str | None = None

    @property
    def events(self) -> tuple[Event, ...]:
        """Name and attributes of each event."""
        events = parse_json(self.events_text)
        events = events if isinstance(events, list) else []
        return tuple((name, values) for name, values in events if isinstance(values, dict))

    @property
    def logs(self) -> list[Log]:
        """Its log records, in order of time."""
        return [_log(*fields) for fields in orjson.loads(self.logs_text or "[]")]

    @property
    def exemplars(self) -> list[Exemplar]:
        """Its exemplars, in order of time."""
        rows = orjson.loads(self.exemplars_text or "[]")
        return [Exemplar._make((*row[:3], parse_json(row[3]), *row[4:])) for row in rows]

    def get(self, *names: str) -> str | None:
        """Return the first of these attributes that is not empty."""
        attributes = self.attributes
        for name in names:
            if text := attributes.get(name):
                return text
        return None

    def json(self, *names: str) -> Any:
        """Return the first of these attributes, parsed; text that is not JSON stays text."""
        return parse_json(self.get(*names))

    def integer(self, *names: str) -> int | None:
        """Return the first of these attributes as an integer from 0 up; None where it is none."""
        return untrusted.parse_count(self.get(*names))

    def flag(self, name: str) -> bool:
        """Return whether the attribute is present and true."""
        return (self.attributes.get(name) or "").lower() in ("true", "1")


COLUMNS = (
    *("execution_id", "trace_id", "span_id", "parent_id", "process", "scope", "name"),
    *("start", "end", "status", "message", "attributes", "events", "links", "logs"),
    *("role", "trusted", "scope_version", "exemplars"),
)


def iter_spans(spans: pl.DataFrame) -> Iterator[Span]:
    """Yield the rows of a frame of `SPANS`."""
    for row in _rows(spans.select(COLUMNS)):
        status, message, attributes, events, links, logs, role, trusted, *rest = row[9:]
        attributes, fault = _bounded(attributes or {})
        fields = (status == "Error", message or "", attributes, events or "[]", tuple(links or ()))
        names = "\n".join(("", *attributes))
        version, exemplars = rest
        more = role or "agent", bool(trusted), version or "", exemplars
        yield Span._make((*row[:9], *fields, names, fault, logs, *more))


def _rows(frame: pl.DataFrame) -> Iterator[tuple[Any, ...]]:
    """Yield rows like `iter_rows`, at a third of its cost: by column and in chunks."""
    for chunk in frame.iter_slices(CHUNK):
        yield from zip(*(column.to_list() for column in chunk.get_columns()), strict=True)


def _bounded(attributes: dict[str, str]) -> tuple[dict[str, str], str | None]:
    if sum(map(len, attributes.values())) > MAX_ATTRIBUTE_CHARS:
        return {}, "too_large"
    return attributes, None


def _log(name: str | None, body: str | None, text: str, *rest: Any) -> Log:
    attributes = parse_json(text)
    return Log(name or "", body or "", attributes if isinstance(attributes, dict) else {}, *rest)
