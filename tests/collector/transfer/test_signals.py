"""Export and import of log records and metrics, row by row, together with spans."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message import Message
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.sdk.metrics import Histogram, MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.metrics.view import ExponentialBucketHistogramAggregation, View
from opentelemetry.sdk.resources import Resource
from polars.testing import assert_frame_equal
from tests.otlp import insert_otlp
from tests.property_examples import examples
from typer.testing import CliRunner

from ltrain.cli import app
from ltrain_collector.signals import LOGS, METRICS, TABLES, Signal
from ltrain_collector.store import Store
from ltrain_collector.transfer.commands import FORMATS, export_requests
from ltrain_collector.transfer.importing import (
    PROGRESS_BYTES,
    ImportCounts,
    Progress,
    import_files,
)

FIXTURES = Path(__file__).parents[2] / "fixtures"
CAPTURES = sorted(FIXTURES.glob("*.logs.otlp.json"))
NOON = 1_790_000_000_000_000_000
VIEWS = {table.view: table for table in TABLES.values()}

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
"""A metric needs a name: without one, its protobuf looks like that of a log record."""
attribute_pairs = st.lists(st.tuples(texts, texts), max_size=3, unique_by=lambda pair: pair[0])
times = st.integers(NOON - 10**18, NOON)
numbers = st.floats(allow_nan=False) | st.just(float("nan"))
large = st.integers(0, 2**64 - 1)
small = st.integers(-(2**31), 2**31 - 1)
ids = st.tuples(st.sampled_from([b"", b"t" * 16]), st.sampled_from([b"", b"s" * 8]))


def fill(into: Any, pairs: list[tuple[str, str]]) -> None:
    for key, value in pairs:
        into.add(key=key).value.string_value = value


@st.composite
def log_requests(draw: Any) -> ExportLogsServiceRequest:
    made = ExportLogsServiceRequest()
    for _ in range(draw(st.integers(1, 3))):
        resource = made.resource_logs.add(schema_url=draw(texts))
        fill(resource.resource.attributes, draw(attribute_pairs))
        scoped = resource.scope_logs.add(schema_url=draw(texts))
        scoped.scope.name, scoped.scope.version = draw(texts), draw(texts)
        fill(scoped.scope.attributes, draw(attribute_pairs))
        for _ in range(draw(st.integers(1, 3))):
            at = draw(st.just(0) | times)
            record = scoped.log_records.add(time_unix_nano=at, severity_text=draw(texts))
            record.severity_number = draw(st.integers(0, 24))
            record.flags, record.event_name = draw(st.integers(0, 255)), draw(texts)
            record.trace_id, record.span_id = draw(ids)
            record.body.string_value = draw(texts)
            fill(record.attributes, draw(attribute_pairs))
    return made


def points_of(metric: Any, draw: Any, kind: str) -> None:
    data = getattr(metric, kind)
    data.SetInParent()
    if kind not in ("gauge", "summary"):
        data.aggregation_temporality = draw(st.integers(0, 2))
    if kind == "sum":
        data.is_monotonic = draw(st.booleans())
    for _ in range(draw(st.integers(1, 3))):
        point = data.data_points.add(time_unix_nano=draw(times), flags=draw(st.integers(0, 9)))
        point.start_time_unix_nano = draw(st.just(0) | times)
        fill(point.attributes, draw(attribute_pairs))
        if kind in ("gauge", "sum"):
            point.as_double = draw(numbers)
        else:
            point.count, point.sum = draw(large), draw(numbers)
        if kind == "summary":
            for value in draw(st.lists(numbers, max_size=2)):
                point.quantile_values.add(quantile=0.5, value=value)
            continue
        if kind == "histogram":
            point.bucket_counts.extend(draw(st.lists(large, max_size=3)))
            point.explicit_bounds.extend(draw(st.lists(numbers, max_size=3)))
        if kind == "exponential_histogram":
            point.scale, point.zero_count = draw(small), draw(large)
            for side in (point.positive, point.negative):
                side.offset = draw(small)
                side.bucket_counts.extend(draw(st.lists(large, max_size=3)))
        if kind in ("histogram", "exponential_histogram"):
            point.min, point.max = draw(numbers), draw(numbers)
        for _ in range(draw(st.integers(0, 2))):
            trace, span = draw(ids)
            one = point.exemplars.add(time_unix_nano=draw(times), trace_id=trace, span_id=span)
            one.as_double = draw(numbers)
            fill(one.filtered_attributes, draw(attribute_pairs))


@st.composite
def metric_requests(draw: Any) -> ExportMetricsServiceRequest:
    made = ExportMetricsServiceRequest()
    kinds = ("gauge", "sum", "histogram", "exponential_histogram", "summary")
    for _ in range(draw(st.integers(1, 2))):
        resource = made.resource_metrics.add(schema_url=draw(texts))
        fill(resource.resource.attributes, draw(attribute_pairs))
        scoped = resource.scope_metrics.add(schema_url=draw(texts))
        scoped.scope.name, scoped.scope.version = draw(texts), draw(texts)
        scoped.scope.dropped_attributes_count = draw(st.integers(0, 9))
        fill(scoped.scope.attributes, draw(attribute_pairs))
        for _ in range(draw(st.integers(1, 4))):
            metric = scoped.metrics.add(name=draw(names), description=draw(texts))
            metric.unit = draw(texts)
            points_of(metric, draw, draw(st.sampled_from(kinds)))
    return made


def rows(store: Store, view: str) -> Any:
    columns = ", ".join(f"`{name}`" for name in VIEWS[view].columns)
    return store.query(f"SELECT {columns} FROM {view} ORDER BY cityHash64({columns})")


def held(store: Store) -> dict[str, Any]:
    return {view: found for view in VIEWS if (found := rows(store, view)).height}


def imported(store: Store, *paths: Path, trusted: bool = False) -> ImportCounts:
    return import_files(store, list(paths), lambda progress: None, trusted)


def emptied(store: Store) -> None:
    for table in TABLES:
        store.command(f"TRUNCATE TABLE {table}")


def goes_round(store: Store, signal: Signal, file: Path) -> None:
    """Assert that an import of each format of a signal's export restores the same rows."""
    before = held(store)
    count = sum(frame.height for frame in before.values())
    for form, written in FORMATS.items():
        file.write_bytes(b"".join(map(written, export_requests(store, "true", {}, signal))))
        emptied(store)
        for _ in range(2):
            counts = imported(store, file, trusted=True)  # its own export
            assert (counts.stored, counts.unreadable) == (count, 0), form
        after = held(store)
        assert after.keys() == before.keys()
        for view, frame in before.items():
            assert_frame_equal(after[view], frame)


@pytest.mark.parametrize(
    ("requests", "signal"),
    [(log_requests(), LOGS), (metric_requests(), METRICS)],
    ids=["logs", "metrics"],
)
@settings(
    max_examples=examples(12, change=3), suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_import_of_exported_records_is_the_same_rows(
    folder: Store,
    tmp_path: Path,
    requests: st.SearchStrategy[Message],
    signal: Signal,
    data: st.DataObject,
) -> None:
    emptied(folder)  # of the example before
    body = data.draw(requests).SerializeToString()
    assert insert_otlp(folder, body, signal).count > 0
    goes_round(folder, signal, tmp_path / "out")


def measured() -> bytes:
    """Return the SDK's export of one instrument of each kind and an exponential histogram."""
    reader = InMemoryMetricReader()
    view = View(
        instrument_type=Histogram,
        instrument_name="wide",
        aggregation=ExponentialBucketHistogramAggregation(),
    )
    resource = Resource({"service.name": "agent"})
    meter = MeterProvider([reader], resource, views=[view]).get_meter("m", "1")
    meter.create_counter("calls", "1", "calls made").add(3, {"tool": "sql"})
    meter.create_up_down_counter("open").add(-2)
    meter.create_gauge("load").set(0.5)
    for name in ("took", "wide"):
        meter.create_histogram(name, "s").record(0.25, {"tool": "sql"})
    exported = reader.get_metrics_data()
    assert exported is not None
    return bytes(encode_metrics(exported).SerializeToString())


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


@pytest.mark.parametrize("capture", CAPTURES, ids=lambda path: path.name)
def test_captured_logs_are_imported_and_exported(
    folder: Store, tmp_path: Path, capture: Path
) -> None:
    counts = imported(folder, capture)
    assert counts.stored == counts.records > 0 == counts.unreadable
    assert rows(folder, "otel.logs").height == counts.stored
    goes_round(folder, LOGS, tmp_path / "out")


def test_messages_of_each_signal_are_distinguished(
    folder: Store, tmp_path: Path, request_of: Callable[..., bytes]
) -> None:
    logs = ExportLogsServiceRequest()
    logs.resource_logs.add().scope_logs.add().log_records.add(severity_text="without a time")
    observed = ExportLogsServiceRequest()
    observed.resource_logs.add().scope_logs.add().log_records.add(
        observed_time_unix_nano=NOON
    ).body.string_value = "\x0a\x00"
    bodies = [
        measured(),
        request_of((1, 1)),
        logs.SerializeToString(),
        observed.SerializeToString(),
    ]
    wild = request_of((1, 2)).replace((1).to_bytes(16, "big"), bytes(16))
    (tmp_path / "all").write_bytes(b"".join(map(framed, [*bodies, wild])))
    counts = imported(folder, tmp_path / "all")
    assert (counts.records, counts.stored, counts.unreadable) == (9, 8, 0)
    assert counts.rejected.total() == 1
    assert {view: frame.height for view, frame in held(folder).items()} == {
        "otel.spans": 1,
        "otel.logs": 2,
        "otel.metrics_gauge": 1,
        "otel.metrics_sum": 2,
        "otel.metrics_histogram": 1,
        "otel.metrics_exponential_histogram": 1,
    }


def test_what_the_sdk_measures_goes_round(folder: Store, tmp_path: Path) -> None:
    insert_otlp(folder, measured(), METRICS)
    sql = "SELECT MetricName, MetricUnit, Value, IsMonotonic FROM otel.metrics_sum ORDER BY 1"
    expected = [("calls", "1", 3.0, True), ("open", "", -2.0, False)]
    assert folder.query(sql).rows() == expected
    goes_round(folder, METRICS, tmp_path / "out")
    assert folder.query(sql).rows() == expected


def test_of_a_duplicate_attribute_one_is_exported(folder: Store, tmp_path: Path) -> None:
    logs = ExportLogsServiceRequest()
    record = logs.resource_logs.add().scope_logs.add().log_records.add(time_unix_nano=NOON)
    fill(record.attributes, [("a", "1"), ("a", "2")])
    insert_otlp(folder, logs.SerializeToString(), LOGS)
    (tmp_path / "out").write_bytes(
        b"".join(map(FORMATS["proto"], export_requests(folder, "true", {}, LOGS)))
    )
    emptied(folder)
    imported(folder, tmp_path / "out")
    sql = "SELECT toString(LogAttributes) AS a FROM otel.logs"
    assert folder.query(sql)["a"].to_list() == ["{'a':'2'}"]


def test_the_command_chooses(folder: Store, tmp_path: Path) -> None:
    def ltrain(*argv: str) -> Any:
        return CliRunner().invoke(app, ["export", *argv, "--store", folder.name])

    logs = ExportLogsServiceRequest()
    for rollout in ("a", "b"):
        scoped = logs.resource_logs.add().scope_logs.add()
        record = scoped.log_records.add(time_unix_nano=NOON)
        record.body.string_value = f"of {rollout}"
        fill(record.attributes, [("ltrain.rollout.id", rollout), ("ltrain.run.id", "r")])
    insert_otlp(folder, logs.SerializeToString(), LOGS)
    insert_otlp(folder, measured(), METRICS)

    def bodies(*argv: str) -> list[str]:
        attribute_pairs = [
            json.loads(line) for line in ltrain("--signal", "logs", *argv).stdout.splitlines()
        ]
        return [
            record["body"]["stringValue"]
            for request in attribute_pairs
            for resource in request["resourceLogs"]
            for scoped in resource["scopeLogs"]
            for record in scoped["logRecords"]
        ]

    assert bodies("--rollout", "a") == ["of a"]
    assert bodies("--run", "r") == ["of a", "of b"]
    assert bodies("--where", "Body LIKE '%b'") == ["of b"]
    out = tmp_path / "m.zst"
    done = ltrain(str(out), "--signal", "metrics", "--where", "MetricName = 'calls'")
    assert done.output.startswith(f"{out}: 1 data point of chdb://")
    again = imported(folder, out, trusted=True)
    assert (again.stored, again.new_rows) == (1, {"data points": 0})
    folder.command("INSERT INTO otel.otel_logs (Timestamp, TraceId) VALUES (now(), 'mine')")
    assert "Not exported: 1 log record; their ids" in ltrain("--signal", "logs").output
    wrong = ltrain("--signal", "metrics", "--run", "r")
    assert "Metrics belong to no run and no rollout" in str(wrong.exception)
    assert "Choose from: traces, logs, metrics" in str(ltrain("--signal", "x").exception)


@pytest.mark.parametrize("name", ["plain", "plain.gz", "plain.zst"])
def test_an_import_of_a_large_file_reports_progress(
    folder: Store, tmp_path: Path, name: str
) -> None:
    import gzip
    import random

    from backports import zstd

    noise = random.Random(7).randbytes(3 * PROGRESS_BYTES // 2).hex()
    text = b"".join(
        json.dumps({"resourceSpans": [], "x": noise[at : at + 65536]}).encode() + b"\n"
        for at in range(0, len(noise), 65536)
    )
    packs: dict[str, Callable[[bytes], bytes]]
    packs = {"plain": bytes, "plain.gz": gzip.compress, "plain.zst": zstd.compress}
    (tmp_path / name).write_bytes(packs[name](text))
    reports: list[Progress] = []
    import_files(folder, [tmp_path / name], reports.append)
    assert len(reports) >= 2
    assert reports[0].read == 0
    size = (tmp_path / name).stat().st_size
    assert all(PROGRESS_BYTES <= each.read <= each.size == size for each in reports[1:])
