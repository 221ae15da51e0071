"""The state of a collector at one moment, from which its metrics are computed."""

import asyncio
import json
import logging
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from ltrain_collector.errors import QueryFailed, StoreGone
from ltrain_collector.http import RefusalCounts
from ltrain_collector.ingest import Counters, Intake
from ltrain_collector.query import QueryCounters
from ltrain_collector.store import Engine, program_version

PAGE = 4096

TABLE_SIZES = (
    "SELECT concat(database, '.', table) AS name, sum(rows) AS rows, sum(bytes_on_disk) AS bytes "
    "FROM system.parts WHERE active AND database = 'otel' GROUP BY name ORDER BY name"
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TableSize:
    """The size of a table, duplicates that no merge has removed yet included."""

    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class State:
    """The state of a collector at one moment."""

    counters: Counters
    queries: QueryCounters
    blocked: dict[str, int]
    """Requests that were refused before they were read, by reason."""
    waiting: int
    """Bytes of requests in memory."""
    missed: int
    """Rounds of the collector's metrics that could not be stored."""
    tables: dict[str, TableSize]
    free: int
    size: int
    """Size of the disk in bytes; `free` are the free ones."""
    resident: int
    cpu: float
    begun: float
    """Unix seconds."""
    program: str


class Monitor:
    """Reads the state of a running collector."""

    def __init__(
        self,
        intake: Intake,
        queries: QueryCounters,
        engine: Engine,
        folder: Path,
        refusals: RefusalCounts,
    ) -> None:
        self.intake = intake
        self.missed = 0
        self._queries = queries
        self._engine = engine
        self._folder = folder
        self._refusals = refusals
        self._begun = time.time()
        self.program = program_version()

    async def state(self) -> State:
        """Return the current state; the engine is queried in a thread."""
        tables = await asyncio.to_thread(self._tables)
        size, free = self.disk()
        return State(
            counters=self.intake.counters,
            queries=self._queries,
            blocked=self._refusals.by_reason(),
            waiting=self.intake.budget.in_use,
            missed=self.missed,
            tables=tables,
            free=free,
            size=size,
            resident=int(Path("/proc/self/statm").read_text().split()[1]) * PAGE,
            cpu=time.process_time(),
            begun=self._begun,
            program=self.program,
        )

    def failure(self) -> str:
        """Return why nothing can be stored, or '' if no reason is known."""
        try:
            self._engine.presence.check()
        except StoreGone as error:
            return str(error)
        return ""

    def disk(self) -> tuple[int, int]:
        """Return the size and the free bytes of the store's disk."""
        existing = next(each for each in (self._folder, *self._folder.parents) if each.exists())
        disk = shutil.disk_usage(existing)
        return disk.total, disk.free

    def _tables(self) -> dict[str, TableSize]:
        try:
            text = b"".join(self._engine.export(TABLE_SIZES, "JSONEachRow", JSON_SETTINGS)).decode()
        except QueryFailed as error:  # the other metrics can show why, so they are still returned
            logger.warning("ltrain: the store's size is not known: %s", error)
            return {}
        rows = map(json.loads, text.splitlines())
        return {row["name"]: TableSize(row["rows"], row["bytes"]) for row in rows}


JSON_SETTINGS = {"output_format_json_quote_64bit_integers": "0"}
