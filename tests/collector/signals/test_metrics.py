from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from tests.otlp import insert_otlp

from ltrain_collector.signals import METRICS
from ltrain_collector.signals.metrics import encode_metrics
from ltrain_collector.store import Store

NOON = 1_790_000_000_000_000_000
MOMENT = datetime.fromtimestamp(NOON / 1e9, UTC)
DAWN = datetime.fromtimestamp(NOON / 1e9 - 60, UTC)

POINT = {
    "ResourceAttributes": {"service.name": "gateway", "ltrain.sender": "local"},
    "ResourceSchemaUrl": "https://resource",
    "ScopeName": "sql",
    "ScopeVersion": "0.1",
    "ScopeAttributes": {"deep": "true"},
    "ScopeDroppedAttrCount": 2,
    "ScopeSchemaUrl": "https://scope",
    "ServiceName": "gateway",
    "MetricName": "tokens",
    "MetricDescription": "of an answer",
    "MetricUnit": "1",
    "Attributes": {"policy": "7"},
    "StartTimeUnix": DAWN,
    "TimeUnix": MOMENT,
    "Flags": 1,
}
EXEMPLARS = {
    "Exemplars.FilteredAttributes": [{"a": "b"}],
    "Exemplars.TimeUnix": [MOMENT],
    "Exemplars.Value": [3.0],
    "Exemplars.SpanId": ["02" * 8],
    "Exemplars.TraceId": ["01" * 16],
}
SPREAD = {"Min": 0.5, "Max": 4.0, "AggregationTemporality": 2}


def one_metric() -> tuple[ExportMetricsServiceRequest, Metric]:
    request = ExportMetricsServiceRequest()
    resource = request.resource_metrics.add(schema_url="https://resource")
    resource.resource.attributes.add(key="service.name").value.string_value = "gateway"
    scoped = resource.scope_metrics.add(schema_url="https://scope")
    scoped.scope.name, scoped.scope.version = "sql", "0.1"
    scoped.scope.dropped_attributes_count = 2
    scoped.scope.attributes.add(key="deep").value.bool_value = True
    return request, scoped.metrics.add(name="tokens", description="of an answer", unit="1")


def begin(points: object, exemplars: bool = True) -> object:
    """Add a point with the fields that all kinds have."""
    point = points.add(  # type: ignore[attr-defined]
        start_time_unix_nano=NOON - 60 * 10**9, time_unix_nano=NOON, flags=1
    )
    point.attributes.add(key="policy").value.int_value = 7
    if exemplars:
        one = point.exemplars.add(time_unix_nano=NOON, as_int=3)
        one.trace_id, one.span_id = b"\x01" * 16, b"\x02" * 8
        one.filtered_attributes.add(key="a").value.string_value = "b"
    return point


def gauge(metric: Metric) -> None:
    begin(metric.gauge.data_points).as_int = 7  # type: ignore[attr-defined]


def total(metric: Metric) -> None:
    metric.sum.is_monotonic = True
    metric.sum.aggregation_temporality = 2  # type: ignore[assignment]
    begin(metric.sum.data_points).as_double = 7.5  # type: ignore[attr-defined]


def histogram(metric: Metric) -> None:
    metric.histogram.aggregation_temporality = 2  # type: ignore[assignment]
    point = begin(metric.histogram.data_points)
    point.count, point.sum, point.min, point.max = 3, 6.5, 0.5, 4  # type: ignore[attr-defined]
    point.bucket_counts.extend([1, 2**63])  # type: ignore[attr-defined]
    point.explicit_bounds.append(0.5)  # type: ignore[attr-defined]


def exponential(metric: Metric) -> None:
    metric.exponential_histogram.aggregation_temporality = 2  # type: ignore[assignment]
    point = begin(metric.exponential_histogram.data_points)
    point.count, point.sum, point.min, point.max = 3, 6.5, 0.5, 4  # type: ignore[attr-defined]
    point.scale, point.zero_count = -2, 1  # type: ignore[attr-defined]
    point.positive.offset, point.negative.offset = -3, 4  # type: ignore[attr-defined]
    point.positive.bucket_counts.extend([1, 1])  # type: ignore[attr-defined]


def summary(metric: Metric) -> None:
    point = begin(metric.summary.data_points, exemplars=False)
    point.count, point.sum = 3, 6.5  # type: ignore[attr-defined]
    point.quantile_values.add(quantile=0.5, value=2)  # type: ignore[attr-defined]
    point.quantile_values.add(quantile=1, value=4)  # type: ignore[attr-defined]


KINDS = [
    (gauge, "metrics_gauge", {"Value": 7.0, **EXEMPLARS}),
    (
        total,
        "metrics_sum",
        {"Value": 7.5, **EXEMPLARS, "AggregationTemporality": 2, "IsMonotonic": True},
    ),
    (
        histogram,
        "metrics_histogram",
        {
            "Count": 3,
            "Sum": 6.5,
            "BucketCounts": [1, 2**63],
            "ExplicitBounds": [0.5],
            **EXEMPLARS,
            **SPREAD,
        },
    ),
    (
        exponential,
        "metrics_exponential_histogram",
        {
            "Count": 3,
            "Sum": 6.5,
            "Scale": -2,
            "ZeroCount": 1,
            "PositiveOffset": -3,
            "PositiveBucketCounts": [1, 1],
            "NegativeOffset": 4,
            "NegativeBucketCounts": [],
            **EXEMPLARS,
            **SPREAD,
        },
    ),
    (
        summary,
        "metrics_summary",
        {
            "Count": 3,
            "Sum": 6.5,
            "ValueAtQuantiles.Quantile": [0.5, 1.0],
            "ValueAtQuantiles.Value": [2.0, 4.0],
        },
    ),
]


@pytest.mark.parametrize(("fill", "view", "fields"), KINDS)
def test_a_point_is_stored_as_the_exporter_stores_it_and_once(
    folder: Store, fill: Callable[[Metric], None], view: str, fields: dict[str, object]
) -> None:
    request, metric = one_metric()
    fill(metric)
    insert_otlp(folder, request.SerializeToString(), METRICS)
    first = folder.query(f"SELECT * FROM otel.{view}")
    assert first.drop("IngestedAt").to_dicts() == [{**POINT, **fields}]
    insert_otlp(folder, request.SerializeToString(), METRICS)
    assert folder.query(f"SELECT * FROM otel.{view}").equals(first)


def test_points_that_differ_are_all_kept(folder: Store) -> None:
    request, metric = one_metric()
    for value in (0.0, 1.0, 2.0):
        metric.gauge.data_points.add(time_unix_nano=NOON, as_double=value)
    metric.gauge.data_points.add(time_unix_nano=NOON + 1, as_double=2.0)
    insert_otlp(folder, request.SerializeToString(), METRICS)
    values = folder.query("SELECT Value FROM otel.metrics_gauge ORDER BY TimeUnix, Value")
    assert values["Value"].to_list() == [0.0, 1.0, 2.0, 2.0]


def test_a_point_of_another_age_is_rejected_alone() -> None:
    request, metric = one_metric()
    metric.sum.data_points.add(time_unix_nano=2**63)
    metric.sum.data_points.add(time_unix_nano=0)
    rows = encode_metrics(request)
    assert (rows.count, rows.rejected) == (1, 1)
    assert rows.reason == "time_unix_nano is more than a year ahead"


def test_a_metric_without_points_is_nothing() -> None:
    request, _ = one_metric()
    assert encode_metrics(request).blocks == {}
