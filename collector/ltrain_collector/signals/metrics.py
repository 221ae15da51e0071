"""Metrics: data points as RowBinary rows of `otel_metrics_*`, with the exporter's values."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    Exemplar,
    ExponentialHistogram,
    ExponentialHistogramDataPoint,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    NumberDataPoint,
    ResourceMetrics,
    Sum,
    Summary,
    SummaryDataPoint,
)

from ltrain_collector.access import UNLIMITED, IngestPolicy, ingest_policy
from ltrain_collector.signals import origin, points
from ltrain_collector.signals.rowbinary import (
    array,
    counts,
    datetime64,
    float64,
    floats,
    short_string,
    signed32,
    string,
    unsigned32,
    unsigned64,
)
from ltrain_collector.signals.signal import Signal, Table
from ltrain_collector.signals.values import attributes, service_name
from ltrain_collector.signals.writer import Rows, RowWriter

Point = NumberDataPoint | HistogramDataPoint | ExponentialHistogramDataPoint | SummaryDataPoint
Kind = Gauge | Sum | Histogram | ExponentialHistogram | Summary


def encode_metrics(request: ExportMetricsServiceRequest, policy: IngestPolicy = UNLIMITED) -> Rows:
    """Return the rows of a request; `policy` is what its key allows."""
    writer = RowWriter(policy)
    for resource_metrics in request.resource_metrics:
        _write(writer, resource_metrics)
    return writer.rows()


def _write(writer: RowWriter, metrics: ResourceMetrics) -> None:
    resource_attributes = metrics.resource.attributes
    service = short_string(service_name(resource_attributes))
    resource = attributes(resource_attributes) + short_string(metrics.schema_url)
    over_otlp = origin.sender_of(resource_attributes) in origin.OVER_OTLP
    names_collector = (
        over_otlp and service_name(resource_attributes) == ingest_policy.COLLECTOR_SERVICE
    )
    misplaced = writer.policy.resource_violation(metrics.resource)
    for scoped in metrics.scope_metrics:
        scope = scoped.scope
        shared = misplaced or writer.policy.scope_violation(scope)
        head = b"".join(
            (
                resource,
                short_string(scope.name),
                short_string(scope.version),
                attributes(scope.attributes),
                unsigned32(scope.dropped_attributes_count),
                short_string(scoped.schema_url),
                service,
            )
        )
        for metric in scoped.metrics:
            violation = shared or writer.policy.record_violation(metric)
            if over_otlp:
                violation = (
                    ingest_policy.find_reserved_metric(metric.name, names_collector) or violation
                )
            _write_metric(writer, metric, head, violation)


def _write_metric(writer: RowWriter, metric: Metric, head: bytes, violation: str) -> None:
    """Write the rows of one metric, or count its points as rejected for `violation`.

    `head` are the fields that all metrics of one resource and scope share.
    """
    name = metric.WhichOneof("data")
    if not name:
        return
    kind: Kind = getattr(metric, name)
    encoder = KINDS[name]
    table = encoder.table
    head += short_string(metric.name) + string(metric.description) + string(metric.unit)
    points: Sequence[Point] = kind.data_points
    writer.count_repeated(head, len(points))
    for point in points:
        if writer.accept(point, writer.time_error(point.time_unix_nano) or violation):
            shared = (
                head,
                attributes(point.attributes),
                datetime64(point.start_time_unix_nano),
                unsigned64(point.time_unix_nano),
            )
            writer.add(table, (*shared, *encoder.fields(point, kind)))


Fields = Callable[..., tuple[bytes, ...]]
"""Returns the fields of a data point that follow those of all kinds."""


def _gauge(point: NumberDataPoint, gauge: Gauge) -> tuple[bytes, ...]:
    return float64(_value(point)), unsigned32(point.flags), _exemplars(point.exemplars)


def _sum(point: NumberDataPoint, total: Sum) -> tuple[bytes, ...]:
    return (
        float64(_value(point)),
        unsigned32(point.flags),
        _exemplars(point.exemplars),
        signed32(total.aggregation_temporality),
        bytes((total.is_monotonic,)),
    )


def _histogram(point: HistogramDataPoint, histogram: Histogram) -> tuple[bytes, ...]:
    return (
        unsigned64(point.count),
        float64(point.sum),
        counts(point.bucket_counts),
        floats(point.explicit_bounds),
        _exemplars(point.exemplars),
        unsigned32(point.flags),
        float64(point.min),
        float64(point.max),
        signed32(histogram.aggregation_temporality),
    )


def _exponential(
    point: ExponentialHistogramDataPoint, histogram: ExponentialHistogram
) -> tuple[bytes, ...]:
    return (
        unsigned64(point.count),
        float64(point.sum),
        signed32(point.scale),
        unsigned64(point.zero_count),
        signed32(point.positive.offset),
        counts(point.positive.bucket_counts),
        signed32(point.negative.offset),
        counts(point.negative.bucket_counts),
        _exemplars(point.exemplars),
        unsigned32(point.flags),
        float64(point.min),
        float64(point.max),
        signed32(histogram.aggregation_temporality),
    )


def _summary(point: SummaryDataPoint, summary: Summary) -> tuple[bytes, ...]:
    values = point.quantile_values
    return (
        unsigned64(point.count),
        float64(point.sum),
        floats([value.quantile for value in values]),
        floats([value.value for value in values]),
        unsigned32(point.flags),
    )


def _value(point: NumberDataPoint | Exemplar) -> float:
    # the tables have no column for integers
    return point.as_double or float(point.as_int)


def _exemplars(exemplars: Sequence[Exemplar]) -> bytes:
    if not exemplars:
        return b"\0" * 5
    fields, times, values, spans, traces = [], [], [], [], []
    for one in exemplars:
        fields.append(attributes(one.filtered_attributes))
        times.append(datetime64(one.time_unix_nano))
        values.append(_value(one))
        spans.append(string(one.span_id.hex().zfill(16)))
        traces.append(string(one.trace_id.hex().zfill(32)))
    return array(fields) + array(times) + floats(values) + array(spans) + array(traces)


_POINT_COLUMNS = (
    *points.HEAD,
    "ServiceName",
    "MetricName",
    "MetricDescription",
    "MetricUnit",
    "Attributes",
    "StartTimeUnix",
    "TimeUnix",
)

_EXEMPLAR_COLUMNS = (
    "Exemplars.FilteredAttributes",
    "Exemplars.TimeUnix",
    "Exemplars.Value",
    "Exemplars.SpanId",
    "Exemplars.TraceId",
)

_HISTOGRAM_SUFFIX = (*_EXEMPLAR_COLUMNS, "Flags", "Min", "Max", "AggregationTemporality")


@dataclass(frozen=True, slots=True)
class _Kind:
    """One kind of metric, which has a table of its own."""

    name: str
    fields: Fields
    columns: tuple[str, ...]
    """The columns of `fields`."""

    @property
    def table(self) -> str:
        return f"otel.otel_metrics_{self.name}"


KINDS = {
    kind.name: kind
    for kind in (
        _Kind("gauge", _gauge, ("Value", "Flags", *_EXEMPLAR_COLUMNS)),
        _Kind(
            "sum",
            _sum,
            ("Value", "Flags", *_EXEMPLAR_COLUMNS, "AggregationTemporality", "IsMonotonic"),
        ),
        _Kind(
            "histogram",
            _histogram,
            ("Count", "Sum", "BucketCounts", "ExplicitBounds", *_HISTOGRAM_SUFFIX),
        ),
        _Kind(
            "exponential_histogram",
            _exponential,
            (
                *("Count", "Sum", "Scale", "ZeroCount"),
                *("PositiveOffset", "PositiveBucketCounts"),
                *("NegativeOffset", "NegativeBucketCounts"),
                *_HISTOGRAM_SUFFIX,
            ),
        ),
        _Kind(
            "summary",
            _summary,
            ("Count", "Sum", "ValueAtQuantiles.Quantile", "ValueAtQuantiles.Value", "Flags"),
        ),
    )
}
"""The kinds of metrics, by the field of `Metric` that holds their points."""


def _matches(message: ExportMetricsServiceRequest) -> bool:
    metrics = (one for r in message.resource_metrics for s in r.scope_metrics for one in s.metrics)
    return all(one.WhichOneof("data") for one in islice(metrics, 1))


METRICS = Signal(
    name="metrics",
    path="/v1/metrics",
    service="opentelemetry.proto.collector.metrics.v1.MetricsService",
    request=ExportMetricsServiceRequest,
    response=ExportMetricsServiceResponse,
    doc="a data point, once: the exporter's columns and `IngestedAt`",
    records="data_points",
    tables=tuple(
        Table(
            name=kind.table,
            view=f"otel.metrics_{kind.name}",
            columns=(*_POINT_COLUMNS, *kind.columns),
            steps=("02_metrics",),
            view_files=("05_metrics",),
            to_request=partial(points.metrics_request, kind.name),
            order="ServiceName, MetricName, Attributes, TimeUnix",
            time="TimeUnix",
        )
        for kind in KINDS.values()
    ),
    encode=encode_metrics,
    matches=_matches,
)
