"""The collector's own metrics: a meter, and what its instruments recorded since the start."""

import socket
from typing import Any

from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.sdk.metrics import AlwaysOffExemplarFilter, MeterProvider
from opentelemetry.sdk.metrics.export import MetricsData
from opentelemetry.sdk.resources import Resource
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.samples import Sample

from ltrain_collector.access import COLLECTOR_SERVICE
from ltrain_collector.store import program_version

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""The media type of `OwnMetrics.exposition`."""


class _Reader(PrometheusMetricReader):
    """Prometheus' reader, which also keeps what it collects, to be stored.

    It overrides the SDK's hook for readers: a second reader would record each value once more.
    """

    latest: MetricsData | None = None
    """The values of the last collection."""

    def _receive_metrics(self, metrics_data: MetricsData, *args: Any, **keywords: Any) -> None:
        self.latest = metrics_data
        super()._receive_metrics(metrics_data, *args, **keywords)


class OwnMetrics:
    """Metrics of one collector; a process can have several."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._reader = _Reader(
            disable_target_info=True, scope_info_enabled=False, registry=self._registry
        )
        attributes = {
            "service.name": COLLECTOR_SERVICE,
            "service.version": program_version(),
            "host.name": socket.gethostname(),
        }
        provider = MeterProvider(
            (self._reader,), Resource(attributes), AlwaysOffExemplarFilter(), shutdown_on_exit=False
        )
        self.meter = provider.get_meter("ltrain.collector")

    def exposition(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self._registry)

    def samples(self) -> list[Sample]:
        """Return all current values, as Prometheus names them."""
        return [sample for family in self._registry.collect() for sample in family.samples]

    def otlp_request(self) -> ExportMetricsServiceRequest:
        """Return all metrics as an OTLP request, without counters of 0."""
        self.samples()  # collects
        metrics = self._reader.latest
        request = encode_metrics(metrics) if metrics else ExportMetricsServiceRequest()
        for resource in request.resource_metrics:
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    if metric.HasField("sum"):
                        points = metric.sum.data_points
                        counted = [point for point in points if point.as_int or point.as_double]
                        del points[:]
                        points.extend(counted)
        return request
