"""What is looked at when a collector measures itself, all at one moment."""

import asyncio
import json
import logging
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from ltrain_collector.engine import Engine
from ltrain_collector.errors import QueryFailed, StoreGone
from ltrain_collector.ingest.counters import Counters
from ltrain_collector.ingest.intake import Intake
from ltrain_collector.listen.refusals import Refusals
from ltrain_collector.migration import program
from ltrain_collector.query.counters import QueryCounters

PAGE = 4096

PARTS = (
    "SELECT concat(database, '.', table) AS name, sum(rows) AS rows, sum(bytes_on_disk) AS bytes "
    "FROM system.parts WHERE active AND database = 'otel' GROUP BY name ORDER BY name"
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Table:
    """A table as it lies on disk, copies that no merge took out yet included."""

    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class State:
    """A collector at one moment."""

    counters: Counters
    queries: QueryCounters
    blocked: dict[str, int]
    """Requests that were refused before they were read, by reason."""
    waiting: int
    """Bytes of requests that are here."""
    missed: int
    """Rounds of measures that could not be stored."""
    tables: dict[str, Table]
    free: int
    size: int
    """Bytes of the disk."""
    resident: int
    cpu: float
    begun: float
    """Unix seconds."""
    program: str


class Watched:
    """A collector, as it is looked at."""

    def __init__(
        self,
        intake: Intake,
        queries: QueryCounters,
        engine: Engine,
        folder: Path,
        refusals: Refusals,
    ) -> None:
        self.intake = intake
        self.missed = 0
        self._queries = queries
        self._engine = engine
        self._folder = folder
        self._refusals = refusals
        self._begun = time.time()
        self.program = program()

    async def state(self) -> State:
        """Look at everything; the engine is asked off the event loop."""
        tables = await asyncio.to_thread(self._tables)
        size, free = self.disk()
        return State(
            counters=self.intake.counters,
            queries=self._queries,
            blocked=self._refusals.by_reason(),
            waiting=self.intake.budget.waiting,
            missed=self.missed,
            tables=tables,
            free=free,
            size=size,
            resident=int(Path("/proc/self/statm").read_text().split()[1]) * PAGE,
            cpu=time.process_time(),
            begun=self._begun,
            program=self.program,
        )

    def fault(self) -> str:
        """Return why nothing can be stored; '' when nothing is known to be wrong."""
        try:
            self._engine.presence.check()
        except StoreGone as error:
            return str(error)
        return ""

    def disk(self) -> tuple[int, int]:
        """Return the bytes of the store's disk, and those that are free."""
        there = next(each for each in (self._folder, *self._folder.parents) if each.exists())
        disk = shutil.disk_usage(there)
        return disk.total, disk.free

    def _tables(self) -> dict[str, Table]:
        try:
            text = b"".join(self._engine.formatted(PARTS, "JSONEachRow", QUOTED)).decode()
        except QueryFailed as error:  # the other measures say why, so they are given
            logger.warning("ltrain: the store's size is not known: %s", error)
            return {}
        rows = map(json.loads, text.splitlines())
        return {row["name"]: Table(row["rows"], row["bytes"]) for row in rows}


QUOTED = {"output_format_json_quote_64bit_integers": "0"}
