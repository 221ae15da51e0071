from pathlib import Path

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from polars.testing import assert_frame_equal
from tests.otlp import insert_otlp, open_empty_store

from ltrain_collector.signals import LOGS, METRICS
from ltrain_collector.store.trace_store import Store

NOON = 1_790_000_000_000_000_000


def records() -> bytes:
    request = ExportLogsServiceRequest()
    resource = request.resource_logs.add()
    resource.resource.attributes.add(key="ltrain.run.id").value.string_value = "demo"
    scoped = resource.scope_logs.add()
    for rollout in ("r1", "r2"):
        record = scoped.log_records.add(time_unix_nano=NOON, event_name="e")
        record.attributes.add(key="ltrain.rollout.id").value.string_value = rollout
        record.attributes.add(key="ltrain.attempt.id").value.int_value = 1
    return bytes(request.SerializeToString())


def points() -> bytes:
    request = ExportMetricsServiceRequest()
    metrics = request.resource_metrics.add().scope_metrics.add().metrics
    for value in (1, 2):
        metrics.add(name="m").gauge.data_points.add(time_unix_nano=NOON, as_int=value)
        metrics.add(name="m").sum.data_points.add(time_unix_nano=NOON, as_int=value)
        metrics.add(name="m").histogram.data_points.add(time_unix_nano=NOON, count=value)
        metrics.add(name="m").summary.data_points.add(time_unix_nano=NOON, count=value)
        exponential = metrics.add(name="m").exponential_histogram
        exponential.data_points.add(time_unix_nano=NOON, count=value)
    return bytes(request.SerializeToString())


@pytest.mark.parametrize(
    "table", [table.name for signal in (LOGS, METRICS) for table in signal.tables]
)
def test_a_table_that_the_exporter_made_reads_the_same(tmp_path: Path, table: str) -> None:
    view = table.replace("otel_", "")
    ordered = f"SELECT * EXCEPT (IngestedAt) FROM {view} ORDER BY ALL"
    with open_empty_store(tmp_path / "ours") as ours:
        insert_otlp(ours, records(), LOGS)
        insert_otlp(ours, points(), METRICS)
        expected = ours.query(ordered)
        rows = ours.query(f"SELECT * FROM {table}")
        named = ours.query(f"DESCRIBE TABLE {table}")
    theirs_has = named.filter(named["default_type"] != "MATERIALIZED")
    columns = ", ".join(f"`{name}` {kind}" for name, kind, *_ in theirs_has.iter_rows())
    assert expected.height == 2
    with Store.open(f"chdb://{tmp_path}/theirs") as theirs:
        theirs.command("CREATE DATABASE theirs")
        where = table.replace("otel.", "theirs.")
        theirs.command(f"CREATE TABLE {where} ({columns}) ENGINE = MergeTree ORDER BY tuple()")
        theirs.command(
            "CREATE TABLE theirs.otel_traces (SpanAttributes Map(String, String), "
            "ResourceAttributes Map(String, String), TraceId String, SpanId String, "
            "SpanName String, Timestamp DateTime64(9), Duration UInt64, ScopeName String, "
            "ParentSpanId String, StatusCode String, StatusMessage String, "
            "Events Nested(Timestamp DateTime64(9), Name String, Attributes Map(String, String))) "
            "ENGINE = MergeTree ORDER BY tuple()"
        )
        theirs.migrate("theirs.otel_traces")
        for _ in range(2):
            theirs.insert(where, rows)
        assert_frame_equal(theirs.query(ordered), expected)
