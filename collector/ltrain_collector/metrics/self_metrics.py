"""Store the collector's own metrics in its own store: one row per metric every 15 seconds.

* They are stored as OTLP metrics of the service `ltrain-collector`. A histogram is stored as two
  sums, its count and its sum; a counter of 0 is not stored.
* They do not count as accepted or inserted rows: the counters of an idle collector do not change.
* A round that the engine cannot store is skipped and counted. Counters only grow, so the next round
  contains everything.
"""

import asyncio
import logging
import socket
import time
from collections.abc import Iterator

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality, Metric

from ltrain_collector.access import COLLECTOR_SERVICE
from ltrain_collector.ingest import Histogram
from ltrain_collector.metrics.health import Health
from ltrain_collector.metrics.measures import MEASURES, Kind, Measure
from ltrain_collector.metrics.state import State

INTERVAL = 15.0
"""Seconds between two rounds."""

CUMULATIVE = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE

logger = logging.getLogger(__name__)


class SelfMetrics:
    """Stores a round of metrics at each interval until it is stopped; used from one event loop."""

    def __init__(self, health: Health, every: float = INTERVAL) -> None:
        self._health = health
        self._monitor = health.monitor
        self._every = every
        self._task: asyncio.Task[None] | None = None

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
            self._health.recent.take_snapshot()
            try:
                await self._monitor.intake.store_self_metrics(
                    metrics_request(await self._monitor.state())
                )
                warned = False
            # whatever the error is, the next round must run
            except Exception as error:
                self._monitor.missed += 1
                if not warned:
                    logger.warning("ltrain: the collector's metrics were not stored: %s", error)
                warned = True


def metrics_request(state: State) -> ExportMetricsServiceRequest:
    """Return the metrics of a state as an OTLP request."""
    request = ExportMetricsServiceRequest()
    resource = request.resource_metrics.add()
    resource_attributes = {
        "service.name": COLLECTOR_SERVICE,
        "service.version": state.program,
        "host.name": socket.gethostname(),
    }
    for key, text in resource_attributes.items():
        resource.resource.attributes.add(key=key).value.string_value = text
    scoped = resource.scope_metrics.add()
    scoped.scope.name = "ltrain.collector"
    now, begun = time.time_ns(), int(state.begun * 1e9)
    for measure in MEASURES:
        readings = [
            (suffix, labels, number)
            for labels, value in measure.read(state)
            for suffix, number in _numbers(value)
        ]
        for suffix in dict.fromkeys(suffix for suffix, _, _ in readings):
            metric = scoped.metrics.add(name=measure.name + suffix, description=measure.doc)
            for each, labels, number in readings:
                if each == suffix:
                    _point(metric, measure, labels, number, begun, now)
    return request


def _numbers(value: float | Histogram) -> Iterator[tuple[str, float]]:
    if isinstance(value, Histogram):
        yield "_count", sum(value.counts)
        yield "_sum", value.sum
    else:
        yield "", value


def _point(
    metric: Metric, measure: Measure, labels: tuple[str, ...], number: float, begun: int, now: int
) -> None:
    if measure.kind is Kind.GAUGE:
        point = metric.gauge.data_points.add()
    elif number:
        metric.sum.aggregation_temporality = CUMULATIVE
        metric.sum.is_monotonic = True
        point = metric.sum.data_points.add(start_time_unix_nano=begun)
    else:
        return
    point.time_unix_nano = now
    point.as_double = number
    for key, text in zip(measure.labels, labels, strict=True):
        point.attributes.add(key=key).value.string_value = text
