"""Convert rows of `otel.metrics_*` to OTLP requests."""

from collections.abc import Callable, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from ltrain_collector.signals.values import Row, add_attributes, nested_rows, parse_id

HEAD = (
    "ResourceAttributes",
    "ResourceSchemaUrl",
    "ScopeName",
    "ScopeVersion",
    "ScopeAttributes",
    "ScopeDroppedAttrCount",
    "ScopeSchemaUrl",
)
"""Columns that all points of a resource and scope share."""

METRIC = ("MetricName", "MetricDescription", "MetricUnit", "AggregationTemporality", "IsMonotonic")
"""Columns that all points of a metric share; some kinds have only the first ones."""


def metrics_request(kind: str, rows: Sequence[Row]) -> ExportMetricsServiceRequest:
    """Return a request with the data points of `rows`, in their order; all are of one kind."""
    request = ExportMetricsServiceRequest()
    for head, of_scope in groupby(rows, itemgetter(*HEAD)):
        resource_attributes, resource_url, name, version, scope_attributes, dropped, url = head
        resource = request.resource_metrics.add(schema_url=resource_url)
        add_attributes(resource.resource.attributes, resource_attributes)
        scoped = resource.scope_metrics.add(schema_url=url)
        scoped.scope.name, scoped.scope.version = name, version
        scoped.scope.dropped_attributes_count = dropped
        add_attributes(scoped.scope.attributes, scope_attributes)
        for _, of_metric in groupby(of_scope, _metric_fields):
            points = list(of_metric)
            data = _metric(scoped.metrics.add(), kind, points[0])
            for row in points:
                _add_point(data.data_points.add(), kind, row)
    return request


def _metric_fields(row: Row) -> list[Any]:
    return [row.get(name) for name in METRIC]


def _add_point(point: Any, kind: str, row: Row) -> None:
    point.start_time_unix_nano, point.time_unix_nano = row["StartTimeUnix"], row["TimeUnix"]
    point.flags = row["Flags"]
    add_attributes(point.attributes, row["Attributes"])
    _ADD_VALUES[kind](point, row)


def _metric(metric: Any, kind: str, row: Row) -> Any:
    metric.name, metric.description = row["MetricName"], row["MetricDescription"]
    metric.unit = row["MetricUnit"]
    data = getattr(metric, kind)
    data.SetInParent()
    if "AggregationTemporality" in row:
        data.aggregation_temporality = row["AggregationTemporality"]
    if "IsMonotonic" in row:
        data.is_monotonic = row["IsMonotonic"]
    return data


def _number(point: Any, row: Row) -> None:
    point.as_double = row["Value"]
    _exemplars(point, row)


def _histogram(point: Any, row: Row) -> None:
    _spread(point, row)
    point.bucket_counts.extend(row["BucketCounts"])
    point.explicit_bounds.extend(row["ExplicitBounds"])


def _exponential(point: Any, row: Row) -> None:
    _spread(point, row)
    point.scale, point.zero_count = row["Scale"], row["ZeroCount"]
    point.positive.offset, point.negative.offset = row["PositiveOffset"], row["NegativeOffset"]
    point.positive.bucket_counts.extend(row["PositiveBucketCounts"])
    point.negative.bucket_counts.extend(row["NegativeBucketCounts"])


def _spread(point: Any, row: Row) -> None:
    point.count, point.sum = row["Count"], row["Sum"]
    point.min, point.max = row["Min"], row["Max"]
    _exemplars(point, row)


def _summary(point: Any, row: Row) -> None:
    point.count, point.sum = row["Count"], row["Sum"]
    for quantile, value in nested_rows(row, "ValueAtQuantiles", "Quantile", "Value"):
        point.quantile_values.add(quantile=quantile, value=value)


def _exemplars(point: Any, row: Row) -> None:
    names = ("FilteredAttributes", "TimeUnix", "Value", "SpanId", "TraceId")
    for attributes, at, value, span, trace in nested_rows(row, "Exemplars", *names):
        ids = {"span_id": parse_id(span), "trace_id": parse_id(trace)}
        one = point.exemplars.add(time_unix_nano=at, as_double=value, **ids)
        add_attributes(one.filtered_attributes, attributes)


_ADD_VALUES: dict[str, Callable[[Any, Row], None]] = {
    "gauge": _number,
    "sum": _number,
    "histogram": _histogram,
    "exponential_histogram": _exponential,
    "summary": _summary,
}
"""Functions by kind that set the values of a data point from its row."""
