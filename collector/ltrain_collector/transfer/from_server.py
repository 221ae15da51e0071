"""Import the traces of a server, page by page: a killed import goes on after its last page."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from time import time_ns
from typing import Self

import orjson

from ltrain_collector.sources import Page, Server, Window
from ltrain_collector.store import Store
from ltrain_collector.transfer.documents import Document
from ltrain_collector.transfer.importing import ImportCounts, Staging, store_documents
from ltrain_instrument.files import write_file
from ltrain_instrument.settings import HOME


@dataclass(slots=True)
class Cursor:
    """The place of an import that has not ended, in a file of the home."""

    file: Path
    until: int
    """The import has no trace that began later, in nanoseconds since the epoch."""
    cursor: str = ""
    """The server's name of the next page; '' at the start."""
    traces: int = 0
    """How many traces were stored."""

    @classmethod
    def of(cls, source: str, window: Window, store: Store) -> Self:
        """Return where an earlier import of the same traces into the same store ended, or start."""
        which = (source, window.since, window.until, window.limit, store.name)
        name = sha256(repr(which).encode()).hexdigest()[:16]
        file = HOME.read() / "imports" / f"{name}.json"
        try:
            kept = orjson.loads(file.read_bytes())
            return cls(file, int(kept["until"]), str(kept["cursor"]), int(kept["traces"]))
        except (OSError, ValueError, KeyError, TypeError):
            return cls(file, window.until or time_ns())

    def move(self, page: Page) -> None:
        """Go on after a page that is stored; after the last one the file is removed."""
        self.cursor, self.traces = page.cursor, self.traces + page.traces
        if not page.cursor:
            self.file.unlink(missing_ok=True)
            return
        self.file.parent.mkdir(parents=True, exist_ok=True)
        kept = {"until": self.until, "cursor": self.cursor, "traces": self.traces}
        write_file(self.file, orjson.dumps(kept))


def import_server(
    store: Store,
    source: str,
    server: Server,
    window: Window,
    on_progress: Callable[[int], None],
) -> tuple[ImportCounts, int, int]:
    """Store the traces of a server.

    Args:
        source: the address, which the resource of each record names.
        on_progress: called after each page with the number of stored traces.

    Returns:
        The counts, the traces that are stored, and how many of them an earlier try stored.

    Raises:
        SourceFailed: the server does not answer; what it has answered is stored.
    """
    counts, place = ImportCounts(), Cursor.of(source, window, store)
    before = place.traces
    with Staging(store) as staging:
        window = replace(window, until=place.until)
        for page in server.pages(window, place.cursor, place.traces):
            store_documents(store, staging, page_documents(page, source), counts)
            place.move(page)
            on_progress(place.traces)
    return counts, place.traces, before


def page_documents(page: Page, source: str) -> Iterator[Document]:
    """Yield the records of a page as documents."""
    for place, request, fault in page.records:
        yield Document(f"{source}, {place}", json=request, fault=fault, source=source)
