"""A collector's own measures in its own store: every 15 seconds a row of each.

* They come in as OTLP metrics of the service `ltrain-collector`, a histogram as two sums, its count
  and its sum; a counter that never counted has none.
* They are not counted as what they measure, neither accepted nor inserted: an idle collector's
  counters stand still.
* A round that the engine refuses is left out, and counted: the next one says all of it, since
  counters only grow.
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

from ltrain_collector.claims import SERVICE
from ltrain_collector.ingest.counters import Tally
from ltrain_collector.watch.health import Health
from ltrain_collector.watch.measures import MEASURES, Kind, Measure
from ltrain_collector.watch.state import State

EVERY = 15.0
"""Seconds from one round to the next."""

CUMULATIVE = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE

logger = logging.getLogger(__name__)


class Diary:
    """Writes rounds until it is stopped; lives in the intake's event loop."""

    def __init__(self, health: Health, every: float = EVERY) -> None:
        self._health = health
        self._watched = health.watched
        self._every = every
        self._writing: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin; the first round is written after one interval."""
        self._writing = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """End; a round that is being written is finished by its thread."""
        if self._writing is not None:
            self._writing.cancel()
            await asyncio.gather(self._writing, return_exceptions=True)

    async def _run(self) -> None:
        told = False
        while True:
            await asyncio.sleep(self._every)
            self._health.recent.note()
            try:
                await self._watched.intake.keep(request(await self._watched.state()))
                told = False
            # whatever the store has, the next round must have its turn
            except Exception as error:
                self._watched.missed += 1
                if not told:
                    logger.warning("ltrain: its own measures could not be stored: %s", error)
                told = True


def request(state: State) -> ExportMetricsServiceRequest:
    """Give a round as OTLP."""
    made = ExportMetricsServiceRequest()
    resource = made.resource_metrics.add()
    about = {
        "service.name": SERVICE,
        "service.version": state.program,
        "host.name": socket.gethostname(),
    }
    for key, text in about.items():
        resource.resource.attributes.add(key=key).value.string_value = text
    scoped = resource.scope_metrics.add()
    scoped.scope.name = "ltrain.collector"
    now, begun = time.time_ns(), int(state.begun * 1e9)
    for measure in MEASURES:
        found = [
            (suffix, labels, number)
            for labels, value in measure.read(state)
            for suffix, number in _numbers(value)
        ]
        for suffix in dict.fromkeys(suffix for suffix, _, _ in found):
            metric = scoped.metrics.add(name=measure.name + suffix, description=measure.doc)
            for each, labels, number in found:
                if each == suffix:
                    _point(metric, measure, labels, number, begun, now)
    return made


def _numbers(value: float | Tally) -> Iterator[tuple[str, float]]:
    if isinstance(value, Tally):
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
