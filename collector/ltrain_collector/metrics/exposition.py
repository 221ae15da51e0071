"""`/metrics`: the collector's metrics in Prometheus' format."""

from collections.abc import Iterable
from itertools import accumulate
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from ltrain_collector.metrics.measures import MEASURES, Kind, Measure, Value
from ltrain_collector.metrics.state import State

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def render(state: State) -> bytes:
    """Return all metrics in Prometheus' text format."""
    registry = CollectorRegistry()
    registry.register(_Measures(state))
    return generate_latest(registry)


class _Measures(Collector):
    def __init__(self, state: State) -> None:
        self._state = state

    def describe(self) -> list[Metric]:
        return []  # otherwise the registry collects once more for the names

    def collect(self) -> Iterable[Metric]:
        for measure in MEASURES:
            family = _family(measure)
            for labels, value in measure.read(self._state):
                _add(family, labels, value)
            yield family


Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily


def _family(measure: Measure) -> Family:
    kinds = {
        Kind.COUNTER: CounterMetricFamily,
        Kind.GAUGE: GaugeMetricFamily,
        Kind.HISTOGRAM: HistogramMetricFamily,
    }
    family: Family = kinds[measure.kind](measure.name, measure.doc, labels=measure.labels)
    return family


def _add(family: Family, labels: tuple[str, ...], value: Value) -> None:
    if isinstance(family, HistogramMetricFamily):
        tally: Any = value
        bounds = [*map(str, map(float, tally.bounds)), "+Inf"]
        buckets = list(zip(bounds, accumulate(tally.counts), strict=True))
        family.add_metric(labels, buckets, tally.sum)
    else:
        number: Any = value
        family.add_metric(labels, number)
