"""Data points become rows of `otel_metrics_*`, in RowBinary, with the values the exporter writes.

A table's fields are in the order of its columns in `schema.METRIC_COLUMNS`.
"""

from collections.abc import Callable, Sequence

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
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

from ltrain_collector import claims, schema
from ltrain_collector.grants import Grant
from ltrain_collector.ingest import origin
from ltrain_collector.ingest.rowbinary import (
    array,
    counts,
    float64,
    floats,
    short,
    signed32,
    string,
    unsigned32,
    unsigned64,
)
from ltrain_collector.ingest.rowbinary import time as moment
from ltrain_collector.ingest.rows import Rows
from ltrain_collector.ingest.values import attributes, service_of
from ltrain_collector.ingest.writer import Writer

Point = NumberDataPoint | HistogramDataPoint | ExponentialHistogramDataPoint | SummaryDataPoint
Kind = Gauge | Sum | Histogram | ExponentialHistogram | Summary


def encode(request: ExportMetricsServiceRequest, grant: Grant | None = None) -> Rows:
    """Give the rows of one request; `grant` is what its client may claim.

    Raises:
        TooLarge: when they repeat too much.
    """
    writer = Writer(grant)
    for resource_metrics in request.resource_metrics:
        _write(writer, resource_metrics)
    return writer.rows()


def _write(writer: Writer, metrics: ResourceMetrics) -> None:
    given = metrics.resource.attributes
    service = short(service_of(given))
    resource = attributes(given) + short(metrics.schema_url)
    foreign = origin.of(given) in origin.OVER_OTLP
    posing = foreign and service_of(given) == claims.SERVICE
    for scoped in metrics.scope_metrics:
        scope = scoped.scope
        head = b"".join(
            (
                resource,
                short(scope.name),
                short(scope.version),
                attributes(scope.attributes),
                unsigned32(scope.dropped_attributes_count),
                short(scoped.schema_url),
                service,
            )
        )
        for metric in scoped.metrics:
            claimed = writer.claimed(metrics.resource, scope, metric)
            if foreign:
                claimed = claims.own_measure(metric.name, posing) or claimed
            _write_metric(writer, metric, head, claimed)


def _write_metric(writer: Writer, metric: Metric, head: bytes, claimed: str) -> None:
    """Write the rows of one metric, but where it claims what its client may not.

    `head` is what all metrics of one resource and scope share.
    """
    name = metric.WhichOneof("data")
    if not name:
        return
    kind: Kind = getattr(metric, name)
    table, fields = KINDS[name]
    head += short(metric.name) + string(metric.description) + string(metric.unit)
    points: Sequence[Point] = kind.data_points
    writer.repeats(head, len(points))
    for point in points:
        if writer.takes(point, writer.ahead(point.time_unix_nano) or claimed):
            shared = (
                head,
                attributes(point.attributes),
                moment(point.start_time_unix_nano),
                unsigned64(point.time_unix_nano),
            )
            writer.add(table, (*shared, *fields(point, kind)))


Fields = Callable[..., tuple[bytes, ...]]
"""The fields of a data point and its metric after those that all kinds have."""


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


def _value(given: NumberDataPoint | Exemplar) -> float:
    """The tables know no integers."""
    return given.as_double or float(given.as_int)


def _exemplars(exemplars: Sequence[Exemplar]) -> bytes:
    if not exemplars:
        return b"\0" * 5
    fields, times, values, spans, traces = [], [], [], [], []
    for one in exemplars:
        fields.append(attributes(one.filtered_attributes))
        times.append(moment(one.time_unix_nano))
        values.append(_value(one))
        spans.append(string(one.span_id.hex().zfill(16)))
        traces.append(string(one.trace_id.hex().zfill(32)))
    return array(fields) + array(times) + floats(values) + array(spans) + array(traces)


KINDS: dict[str, tuple[str, Fields]] = {
    "gauge": (schema.GAUGES, _gauge),
    "sum": (schema.SUMS, _sum),
    "histogram": (schema.HISTOGRAMS, _histogram),
    "exponential_histogram": (schema.EXPONENTIAL_HISTOGRAMS, _exponential),
    "summary": (schema.SUMMARIES, _summary),
}
"""The table and the fields of what a metric may be."""
