"""The list of rollouts and traces by a filter, in pages, and the way from one to the next.

Filter and position are the query of the address, so every list is a link.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self
from urllib.parse import parse_qsl, urlencode

from ltrain_collector.admin import Line, Position, TraceFilter, find_line, read_lines
from ltrain_collector.errors import BadParameter
from ltrain_collector.store import Store
from ltrain_transforms.reports import Kind, Reference
from ltrain_transforms.source import unknown_writers
from ltrain_ui.addresses import KeyLink, address_of

PAGE = 100
"""Rollouts and traces in a page of the list."""
FIELDS = ("run", "mode", "wave", "task", "text", "errors", "unrated")
"""The parameters of a filter."""
QUEUE = "queue"
"""The parameter of a page that is one of a queue: after a rating comes the next execution."""


@dataclass(frozen=True, slots=True)
class ListQuery:
    """A filter, and the position where a page of the list begins."""

    filter: TraceFilter
    values: Mapping[str, str]
    """The parameters of the filter that are not empty."""
    older_than: Position | None = None
    newer_than: Position | None = None

    @classmethod
    def parse_text(cls, text: str) -> Self:
        """Return the filter in the query of an address.

        Raises:
            BadParameter: when a number or a position is none.
        """
        return cls.parse(dict(parse_qsl(text)))

    @classmethod
    def parse(cls, parameters: Mapping[str, str]) -> Self:
        """Parse the query of an address.

        Raises:
            BadParameter: when a parameter is not of its form.
        """
        values = {name: parameters[name] for name in (*FIELDS, QUEUE) if parameters.get(name)}
        chosen = TraceFilter(
            run=values.get("run"),
            mode=values.get("mode"),
            wave=parse_number("wave", values["wave"]) if "wave" in values else None,
            task=values.get("task"),
            text=values.get("text"),
            errors="errors" in values,
            unrated=values.get("unrated"),
        )
        older, newer = (parameters.get(name) for name in ("older_than", "newer_than"))
        return cls(
            chosen,
            values,
            _position("older_than", older) if older else None,
            _position("newer_than", newer) if newer else None,
        )

    @property
    def is_queue(self) -> bool:
        """Whether executions without a rating are opened one after another."""
        return QUEUE in self.values and "unrated" in self.values

    def address(self, **position: str) -> str:
        """Return the address of a page of the list."""
        values = {name: text for name, text in self.values.items() if name != QUEUE}
        query = urlencode({**values, **position})
        return f"/rollouts?{query}" if query else "/rollouts"

    def item(self, line: Line) -> str:
        """Return the address of a rollout or trace of the list."""
        return self.page(Reference(Kind(line.kind), line.id))

    def page(self, reference: Reference) -> str:
        """Return the address of a rollout, trace or session as it is opened from the list."""
        page = address_of(reference)
        return f"{page}?{urlencode(self.values)}" if self.values else str(page)


@dataclass(frozen=True, slots=True)
class ListPage:
    lines: list[Line]
    newer: str | None
    """The address of the page with newer ones, None on the first."""
    older: str | None
    unread: Sequence[str] = ()
    """Sentences on spans that no dialect reads, on the first page."""


def read_page(store: Store, query: ListQuery) -> ListPage:
    """Read a page of the list."""
    lines = read_lines(
        store, query.filter, PAGE + 1, older_than=query.older_than, newer_than=query.newer_than
    )
    backwards = query.newer_than is not None
    more, lines = len(lines) > PAGE, lines[-PAGE:] if backwards else lines[:PAGE]
    has_newer = more if backwards else query.older_than is not None
    has_older = backwards or more
    unread = [] if query.older_than or query.newer_than else unknown_writers(store, query.filter)
    if not lines:
        return ListPage([], None, None, unread)
    newer = query.address(newer_than=_text(lines[0].position)) if has_newer else None
    older = query.address(older_than=_text(lines[-1].position)) if has_older else None
    return ListPage(lines, newer, older, unread)


def neighbours(store: Store, query: ListQuery, unit: str) -> list[KeyLink]:
    """Return the links to the neighbours of a rollout or trace in the list.

    A rollout that the filter does not select has none, unless it was selected until it was rated.
    """
    own = find_line(store, replace(query.filter, unrated=None), unit)
    if own is None:
        return []
    newer = read_lines(store, query.filter, 1, newer_than=own.position)
    older = read_lines(store, query.filter, 1, older_than=own.position)
    links = [("Newer", "k", line) for line in newer] + [("Older", "j", line) for line in older]
    return [(text, key, query.item(line)) for text, key, line in links]


def next_unrated(store: Store, query: ListQuery, unit: str) -> str | None:
    """Return the address of the execution that follows in a queue: an older one, else the newest
    one that is left; None if no other one is left.
    """
    links = {key: address for _, key, address in neighbours(store, query, unit)}
    if "j" in links:
        return links["j"]
    left = [line for line in read_lines(store, query.filter, 2) if line.id != unit]
    return query.item(left[0]) if left else None


def _text(position: Position) -> str:
    return f"{position.latest}.{position.id}"


def _position(name: str, text: str) -> Position:
    latest, _, unit = text.partition(".")
    return Position(parse_number(name, latest), unit)


def parse_number(name: str, text: str) -> int:
    """Parse a number of an address.

    Raises:
        BadParameter: when the text is not a number.
    """
    if not text.isascii() or not text.isdigit() or len(text) > 19:
        raise BadParameter(f"'{name}' is a number in an address, not '{text[:40]}'.")
    return int(text)
