"""Store the collector's own metrics in its own store: one row per metric every 15 seconds.

* They are stored as OTLP metrics of the service `ltrain-collector`; a counter of 0 is not stored.
* They do not count as accepted or inserted rows: the counters of an idle collector do not change.
* A round that the engine cannot store is skipped and counted. Counters only grow, so the next round
  contains everything.
"""

import asyncio
import logging

from ltrain_collector.metrics.health import Health

INTERVAL = 15.0
"""Seconds between two rounds."""

logger = logging.getLogger(__name__)


class SelfMetrics:
    """Stores a round of metrics at each interval until it is stopped; used from one event loop."""

    def __init__(self, health: Health, every: float = INTERVAL) -> None:
        self._health = health
        self._monitor = health.monitor
        self._every = every
        self._task: asyncio.Task[None] | None = None
        self._missed = self._monitor.metrics.meter.create_counter(
            "ltrain_collector_missed_rounds_total",
            description="Rounds of these metrics that could not be stored.",
        )
        self._missed.add(0)

    def start(self) -> None:
        """Start; the first round is stored after one interval."""
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Stop; a thread finishes a round that is being stored."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        warned = False
        while True:
            await asyncio.sleep(self._every)
            self._health.take_snapshot()
            try:
                await self._monitor.read_store()
                request = self._monitor.metrics.otlp_request()
                await self._monitor.intake.store_self_metrics(request)
                warned = False
            # whatever the error is, the next round must run
            except Exception as error:
                self._missed.add(1)
                if not warned:
                    logger.warning("ltrain: the collector's metrics were not stored: %s", error)
                warned = True
