"""Spans as they arrive in the store: one reader for all browsers that follow it.

* Each span has a number. A browser that connects again names the last one that it has, and gets
  those after it.
* A read is bounded: of more than `LIMIT` spans the newest are kept, and the others are counted.
* Without a listener nothing is read.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import suppress
from contextvars import Context, copy_context
from dataclasses import dataclass
from secrets import token_hex

from ltrain_collector.admin import OVERLAP, Arrival, count_arrivals, latest_arrival, read_arrivals
from ltrain_collector.store import Store
from ltrain_instrument.errors import LtrainError
from ltrain_ui.sources import Sources

INTERVAL = 1.0
"""Seconds between two reads of the store."""
RETRY = 3.0
"""Seconds until the store is read again after an error."""
LIMIT = 2000
"""Spans of one read, and spans that are kept for browsers that connect again."""
FIRST = 50
"""Spans that a new listener gets at once: the newest of the last ten minutes."""
BEFORE = 600_000
"""Milliseconds."""
KEEPALIVE = 15.0
"""Seconds after which a listener is called without a change, so that it notices a closed
connection."""
NO_ARRIVALS = (
    "This store does not record when spans arrive, because an exporter created its tables. The "
    "page Rollouts lists the newest traces."
)


@dataclass(frozen=True, slots=True)
class Update:
    """News for a listener."""

    spans: list[tuple[int, Arrival]]
    """Spans by number, the oldest first."""
    skipped: int
    """Spans that are not among them."""
    failure: str
    """Why the store is not read now; '' if it is."""


@dataclass(frozen=True, slots=True)
class Cursor:
    """The number of the last span that a browser has, in one process of the server."""

    process: str
    number: int

    @classmethod
    def parse(cls, text: str) -> "Cursor | None":
        process, _, number = text.partition("-")
        return cls(process, int(number)) if number.isascii() and number.isdigit() else None

    def __str__(self) -> str:
        return f"{self.process}-{self.number}"


@dataclass(frozen=True, slots=True)
class _Arrived:
    """The result of a read."""

    spans: list[Arrival]
    floor: int
    """Spans that arrived until then are not read again."""
    skipped: int = 0


class LiveSpans:
    """Reads new spans while somebody listens; used by one event loop."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self.process = token_hex(4)
        self._kept: deque[tuple[int, Arrival]] = deque(maxlen=LIMIT)
        self._last = 0
        """The number of the newest span; spans that were skipped have numbers too."""
        self._newest: int | None = None
        """When the newest span arrived; None before the first read."""
        self._known: dict[tuple[str, str], int] = {}
        """The spans of the last seconds, and when each arrived."""
        self._floor = 0
        """Spans that arrived until then are read or skipped."""
        self._failure = ""
        self._changed = asyncio.Event()
        self._listeners: list[Context] = []
        """The store is read with the key of the first."""
        self._reader: asyncio.Task[None] | None = None
        self._stopped = False

    def stop(self) -> None:
        """End all listeners, in the thread of the event loop."""
        self._stopped = True
        self._notify()

    async def listen(self, cursor: Cursor | None) -> AsyncGenerator[Update, None]:
        """Yield what is new, at once and after each change; without a change every 15 s."""
        is_known = cursor is not None and cursor.process == self.process
        if self._reader is None and not self._stopped:
            if not is_known:  # nobody waits for what arrived since the last listener
                self._newest, self._known = None, {}
                self._kept.clear()
            self._reader = asyncio.create_task(self._read())
        listener = copy_context()
        self._listeners.append(listener)
        try:
            last = self._last - min(len(self._kept), FIRST)
            last = cursor.number if cursor and is_known else last
            while not self._stopped:
                changed = self._changed
                spans = [(number, span) for number, span in self._kept if number > last]
                skipped = spans[-1][0] - last - len(spans) if spans else 0
                yield Update(spans, skipped, self._failure)
                last = spans[-1][0] if spans else last
                with suppress(TimeoutError):
                    await asyncio.wait_for(changed.wait(), KEEPALIVE)
        finally:
            self._listeners.remove(listener)
            if not self._listeners and self._reader is not None:
                self._reader.cancel()
                self._reader = None

    async def _read(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            failure, last = self._failure, self._last
            read = self._listeners[0].run
            try:
                found = await loop.run_in_executor(None, read, self._sources.read, self._query)
                self._failure = NO_ARRIVALS if found is None else ""
                if found is not None:
                    self._apply(found)
            except LtrainError as error:
                self._failure = str(error)
            if (failure, last) != (self._failure, self._last):
                self._notify()
            await asyncio.sleep(RETRY if self._failure else INTERVAL)

    def _query(self, store: Store) -> "_Arrived | None":
        """Return what arrived, in a thread that changes nothing; None if that is not recorded."""
        if self._newest is None:
            newest = latest_arrival(store)
            if newest is None:
                return None
            spans = read_arrivals(store, newest - BEFORE, FIRST)
            return _Arrived(spans, spans[0].arrived if len(spans) == FIRST else newest - BEFORE)
        since = max(self._newest - OVERLAP, self._floor)
        spans = read_arrivals(store, since, LIMIT)
        if len(spans) < LIMIT:
            return _Arrived(spans, self._floor)
        read = {(span.trace, span.span) for span in spans}
        known = sum(at > since for key, at in self._known.items() if key not in read)
        skipped = count_arrivals(store, since) - LIMIT - known
        return _Arrived(spans, spans[0].arrived, max(skipped, 0))

    def _apply(self, found: "_Arrived") -> None:
        self._floor = found.floor
        self._last += found.skipped  # they have numbers too, so that each listener counts them
        for span in found.spans:
            key = (span.trace, span.span)
            if key not in self._known:
                self._last += 1
                self._kept.append((self._last, span))
                self._known[key] = span.arrived
        self._newest = max(self._newest or found.floor, *(span.arrived for span in found.spans), 0)
        oldest = max(self._newest - OVERLAP, self._floor)
        self._known = {key: at for key, at in self._known.items() if at >= oldest}

    def _notify(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
