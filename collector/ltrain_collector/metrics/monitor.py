"""Observes what a collector does not count itself: its store, its disk and its process."""

import asyncio
import json
import logging
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from ltrain_collector.errors import QueryFailed, StoreGone
from ltrain_collector.http import RefusalCounts
from ltrain_collector.ingest import Intake
from ltrain_collector.metrics.own_metrics import OwnMetrics
from ltrain_collector.store import Engine, program_version
from ltrain_instrument.disk import Disk, read_disk

PAGE = 4096

TABLE_SIZES = (
    "SELECT concat(database, '.', table) AS name, sum(rows) AS rows, sum(bytes_on_disk) AS bytes "
    "FROM system.parts WHERE active AND database = 'otel' GROUP BY name ORDER BY name"
)

JSON_SETTINGS = {"output_format_json_quote_64bit_integers": "0"}

Callbacks = list[Callable[[CallbackOptions], Iterable[Observation]]]

logger = logging.getLogger(__name__)


class Monitor:
    """Observes a running collector."""

    def __init__(
        self,
        metrics: OwnMetrics,
        intake: Intake,
        engine: Engine,
        folder: Path,
        refusals: RefusalCounts,
    ) -> None:
        self.metrics = metrics
        self.intake = intake
        self._engine = engine
        self._folder = folder
        self._tables: list[dict[str, str | int]] = []
        _observe_requests(metrics.meter, intake, refusals)
        self._observe_store(metrics.meter)
        _observe_process(metrics.meter)

    def _observe_store(self, meter: Meter) -> None:
        def by_table(column: str) -> Callbacks:
            return [
                lambda _: [
                    Observation(int(row[column]), {"table": str(row["name"])})
                    for row in self._tables
                ]
            ]

        meter.create_observable_gauge(
            "ltrain_collector_store_rows",
            by_table("rows"),
            description="Rows on disk, duplicates that no merge has removed yet included.",
        )
        meter.create_observable_gauge(
            "ltrain_collector_store_bytes", by_table("bytes"), "By", "Bytes on disk."
        )
        meter.create_observable_gauge(
            "ltrain_collector_disk_free_bytes",
            _one(lambda: self.disk().free),
            "By",
            "Free bytes of the store's disk.",
        )
        meter.create_observable_gauge(
            "ltrain_collector_disk_size_bytes",
            _one(lambda: self.disk().size),
            "By",
            "Size of the store's disk in bytes.",
        )

    async def read_store(self) -> None:
        """Query the sizes of the tables, in a thread, for the next collection."""
        self._tables = await asyncio.to_thread(self._table_sizes)

    async def exposition(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        await self.read_store()
        return self.metrics.exposition()

    def failure(self) -> str:
        """Return why nothing can be stored, or '' if no reason is known."""
        try:
            self._engine.presence.check()
        except StoreGone as error:
            return str(error)
        if self.disk().read_only:
            return (
                f"The disk of {self._folder} is read-only, so nothing is stored. Make it writable; "
                "`dmesg` says why the system made it read-only."
            )
        return ""

    def disk(self) -> Disk:
        """Return the store's disk."""
        return read_disk(self._folder)

    def _table_sizes(self) -> list[dict[str, str | int]]:
        try:
            text = b"".join(self._engine.export(TABLE_SIZES, "JSONEachRow", JSON_SETTINGS)).decode()
        except QueryFailed as error:  # the other metrics can show why, so they are still returned
            logger.warning("ltrain: the store's size is not known: %s", error)
            return []
        return [json.loads(line) for line in text.splitlines()]


def _observe_requests(meter: Meter, intake: Intake, refusals: RefusalCounts) -> None:
    meter.create_observable_counter(
        "ltrain_collector_blocked_total",
        [
            lambda _: [
                Observation(count, {"reason": reason})
                for reason, count in refusals.by_reason().items()
            ]
        ],
        description="Requests of all ports that were refused before they were read: origin, "
        "fetch_site, host, headers, descriptors, keys, denied.",
    )
    meter.create_observable_gauge(
        "ltrain_collector_waiting_bytes",
        _one(lambda: intake.budget.in_use),
        "By",
        "Bytes of requests that are being read, decoded or inserted.",
    )


def _observe_process(meter: Meter) -> None:
    begun = time.time()
    meter.create_observable_gauge(
        "ltrain_collector_resident_bytes",
        _one(lambda: int(Path("/proc/self/statm").read_text().split()[1]) * PAGE),
        "By",
        "Resident memory of the process, the engine included.",
    )
    meter.create_observable_counter(
        "ltrain_collector_cpu_seconds_total",
        _one(time.process_time),
        "s",
        "CPU seconds of the process.",
    )
    meter.create_observable_gauge(
        "ltrain_collector_start_time_seconds",
        _one(lambda: begun),
        "s",
        "Start of the process in Unix seconds.",
    )
    meter.create_observable_gauge(
        "ltrain_collector_info",
        [lambda _: [Observation(1, {"version": program_version()})]],
        description="1, with ltrain's version as a label.",
    )


def _one(read: Callable[[], float]) -> Callbacks:
    """Return callbacks that observe one value without labels."""
    return [lambda _: [Observation(read())]]
