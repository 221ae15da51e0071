"""Convert rows of `otel.metrics_*` to OTLP requests."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)

from ltrain_collector import schema
from ltrain_collector.transfer.fields import Row, add_attributes, nested_rows, parse_id

HEAD = (
    "ResourceAttributes",
    "ResourceSchemaUrl",
    "ScopeName",
    "ScopeVersion",
    "ScopeAttributes",
    "ScopeDroppedAttrCount",
    "ScopeSchemaUrl",
)
METRIC = ("MetricName", "MetricDescription", "MetricUnit", "AggregationTemporality", "IsMonotonic")
"""Columns that all points of a metric share; some kinds have only the first ones."""


def _request(kind: str, point: Callable[[Any, Row], None], rows: Sequence[Row]) -> Any:
    request = ExportMetricsServiceRequest()
    resource: list[Any] = []
    metric: list[Any] = []
    for row in rows:
        head = [row[name] for name in HEAD]
        if head != resource:
            owner = request.resource_metrics.add(schema_url=row["ResourceSchemaUrl"])
            add_attributes(owner.resource.attributes, row["ResourceAttributes"])
            scoped = owner.scope_metrics.add(schema_url=row["ScopeSchemaUrl"])
            scoped.scope.name, scoped.scope.version = row["ScopeName"], row["ScopeVersion"]
            scoped.scope.dropped_attributes_count = row["ScopeDroppedAttrCount"]
            add_attributes(scoped.scope.attributes, row["ScopeAttributes"])
            resource, metric = head, []
        what = [row.get(name) for name in METRIC]
        if what != metric:
            data = _metric(scoped.metrics.add(), kind, row)
            metric = what
        one = data.data_points.add()
        one.start_time_unix_nano, one.time_unix_nano = row["StartTimeUnix"], row["TimeUnix"]
        one.flags = row["Flags"]
        add_attributes(one.attributes, row["Attributes"])
        point(one, row)
    return request


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


REQUESTS: dict[str, Callable[[Sequence[Row]], ExportMetricsServiceRequest]] = {
    schema.GAUGES: partial(_request, "gauge", _number),
    schema.SUMS: partial(_request, "sum", _number),
    schema.HISTOGRAMS: partial(_request, "histogram", _histogram),
    schema.EXPONENTIAL_HISTOGRAMS: partial(_request, "exponential_histogram", _exponential),
    schema.SUMMARIES: partial(_request, "summary", _summary),
}
"""Functions by table that return a request with the data points of rows, in their order."""
