"""Pages of records, which each server's module yields, each with the cursor of the next one."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Protocol

from ltrain_collector.sources.servers.address import Address
from ltrain_collector.sources.spans import Request

ENTRIES = 100
"""Entries of an answer; Langfuse refuses more."""
EPOCH = datetime.fromtimestamp(0, UTC)
UNREADABLE = (KeyError, TypeError, ValueError, AttributeError, OverflowError)
"""Errors of a record that has another form than its platform documents."""


@dataclass(frozen=True, slots=True)
class Window:
    """The selection of an import."""

    since: int | None = None
    """Only traces that began at this time or later, in nanoseconds since the epoch."""
    until: int | None = None
    """Only those that began before."""
    limit: int | None = None
    """So many traces, the newest ones."""

    def rest(self, read: int) -> int | None:
        """Return how many traces are left after so many; None without a limit."""
        return None if self.limit is None else self.limit - read


@dataclass(slots=True)
class Page:
    """Whole traces, or the records that a server lists beside them."""

    cursor: str
    """Where an import goes on after this page; '' after the last one."""
    traces: int = 0
    """How many traces begin on this page."""
    records: list[tuple[str, Request | None, str]] = field(default_factory=list)
    """Place, request, and the fault of a record that has none."""

    def add(self, place: str, read: Callable[[Any], Iterable[Request]], record: Any) -> None:
        """Add the requests that a function makes of a record, or its fault."""
        try:
            self.records += [(place, request, "") for request in read(record)]
        except UNREADABLE as error:
            self.records.append((place, None, f"it has another form than expected: {error!r}"))


class Server(Protocol):
    """Reads one project of a server."""

    keys: ClassVar[tuple[str, ...]]
    """The environment variables with its keys."""
    example: ClassVar[str]
    """An address."""

    def __init__(self, address: Address) -> None: ...

    def projects(self) -> list[str]:
        """Return the names of its projects."""
        ...

    def pages(self, window: Window, cursor: str = "", read: int = 0) -> Iterator[Page]:
        """Yield the pages from a cursor on; '' begins.

        Args:
            read: how many traces the pages before the cursor had.

        Raises:
            SourceFailed: the server cannot be reached, refuses, or answers in another form.
        """
        ...


def iso(nanoseconds: int | None) -> str | None:
    """Return a time as ISO 8601 with microseconds, for a query."""
    if nanoseconds is None:
        return None
    return (EPOCH + timedelta(microseconds=nanoseconds // 1000)).isoformat()


def chunks(values: list[Any], size: int) -> Iterator[list[Any]]:
    for start in range(0, len(values), size):
        yield values[start : start + size]
