"""Promoted columns are declared once: tables, views, older stores and docs have the same ones."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from tests.otlp import insert_otlp, open_empty_store

from ltrain_collector.access.ingest_policy import OPEN_FOR_RUN_KEY
from ltrain_collector.promoted_columns import (
    IDENTITY_ATTRIBUTES,
    NUMBER,
    PromotedColumn,
    columns_of,
)
from ltrain_collector.signals import LOGS, TABLES, TRACES
from ltrain_collector.store import Store
from ltrain_instrument import attributes

ROOT = Path(__file__).parents[2]
OLD = ROOT / "tests" / "fixtures" / "store" / "0.1.0.sql"
READ = "SELECT TaskId, Domain, Mode, Wave, SampleIndex FROM otel.spans ORDER BY SpanId"
IDENTITY = {
    attributes.TASK_ID: "t1",
    attributes.DOMAIN: "db",
    attributes.MODE: "train",
    attributes.WAVE: "3",
    attributes.SAMPLE_INDEX: "2",
}
ROW = ("t1", "db", "train", 3, 2)


def of_resource(body: bytes) -> bytes:
    """Add the identity to the resource of a request."""
    request = ExportTraceServiceRequest.FromString(body)
    for name, value in IDENTITY.items():
        one = request.resource_spans[0].resource.attributes.add(key=name)
        one.value.string_value = value
    return bytes(request.SerializeToString())


@pytest.fixture
def two_spans(request_of: Callable[..., bytes]) -> bytes:
    """A request of two spans whose identity only the resource names."""
    return of_resource(request_of((1, 1), (1, 2), ltrain__rollout__id="r"))


def test_an_identity_that_only_the_resource_names_is_read(folder: Store, two_spans: bytes) -> None:
    insert_otlp(folder, two_spans)
    assert folder.query(READ).rows() == [ROW, ROW]


def test_the_span_has_precedence_over_its_resource(
    folder: Store, request_of: Callable[..., bytes]
) -> None:
    named = request_of((1, 1), ltrain__task__id="t2", ltrain__wave="0")
    insert_otlp(folder, of_resource(named))
    assert folder.query(READ).rows() == [("t2", "db", "train", 0, 2)]


def test_a_closed_rollout_has_the_identity_of_its_resource(
    folder: Store, request_of: Callable[..., bytes]
) -> None:
    closing = request_of((1, 1), name="ltrain.rollout", scope="ltrain.runner")
    insert_otlp(folder, of_resource(closing))
    rollouts = folder.query("SELECT mode, wave, task, sample FROM otel.rollouts")
    assert rollouts.rows() == [("train", 3, "t1", 2)]


def test_rows_of_an_older_store_are_computed_again(tmp_path: Path, two_spans: bytes) -> None:
    with Store.open(f"chdb://{tmp_path}/old") as store:
        store.command("CREATE DATABASE otel")
        for statement in OLD.read_text().split(";\n"):
            store.command(statement)
        insert_otlp(store, two_spans)
        assert store.query("SELECT TaskId, Mode, Wave FROM otel.otel_traces LIMIT 1").rows() == [
            ("", "", 0)
        ]
        assert "10_resource_traces" in store.migrate().steps
        assert store.query(READ).rows() == [ROW, ROW]
        by_index = "SELECT count() FROM otel.spans WHERE TaskId = 't1' AND Mode = 'train'"
        assert store.query(by_index).item() == 2
        insert_otlp(store, two_spans)
        assert store.query(READ).rows() == [ROW, ROW]


def test_views_over_a_table_of_the_exporter_return_the_same(
    tmp_path: Path, two_spans: bytes
) -> None:
    with open_empty_store(tmp_path / "exporter") as store:
        insert_otlp(store, two_spans)
        written = ", ".join(f"`{name}`" for name in TRACES.tables[0].columns)
        store.command("CREATE DATABASE theirs")
        store.command(
            "CREATE TABLE theirs.otel_traces ENGINE = MergeTree ORDER BY tuple() "
            f"AS SELECT {written} FROM otel.otel_traces"
        )
        store.migrate("theirs.otel_traces")
        assert store.query(READ).rows() == [ROW, ROW]


@pytest.mark.parametrize("signal", ["traces", "logs"])
def test_a_view_has_the_columns_of_its_signal(folder: Store, signal: str) -> None:
    table = TABLES[f"otel.otel_{signal}"]
    columns = folder.query(f"SELECT * FROM {table.view} LIMIT 0").columns
    names = [column.name for column in columns_of(signal)]
    assert columns[-len(names) - 1 :] == [*names, "IngestedAt"]
    in_table = "SELECT name FROM system.columns WHERE concat(database, '.', table) = {table:String}"
    assert {*names} <= {*folder.query(in_table, {"table": table.name})["name"]}


def test_a_log_record_has_the_identity_of_its_resource(folder: Store) -> None:
    request = ExportLogsServiceRequest()
    resource = request.resource_logs.add()
    for name in (attributes.RUN_ID, attributes.ROLLOUT_ID, attributes.ATTEMPT_ID):
        resource.resource.attributes.add(key=name).value.string_value = name
    record = resource.scope_logs.add().log_records.add(time_unix_nano=1_790_000_000_000_000_000)
    record.attributes.add(key=attributes.ATTEMPT_ID).value.string_value = "2"
    insert_otlp(folder, bytes(request.SerializeToString()), LOGS)
    assert folder.query("SELECT RunId, RolloutId, Attempt FROM otel.logs").rows() == [
        (attributes.RUN_ID, attributes.ROLLOUT_ID, "2")
    ]


def test_a_bound_key_sets_the_identity_that_columns_read() -> None:
    names = (
        *(attributes.RUN_ID, attributes.TASK_ID, attributes.DOMAIN, attributes.WAVE),
        *(attributes.SAMPLE_INDEX, attributes.ROLLOUT_ID, attributes.ATTEMPT_ID, attributes.MODE),
    )
    lightning = {
        "agentlightning.rollout_id": attributes.ROLLOUT_ID,
        "agentlightning.attempt_id": attributes.ATTEMPT_ID,
    }
    assert {name: name for name in names} | lightning == IDENTITY_ATTRIBUTES
    assert {attributes.RUN_ID} == {*names} - OPEN_FOR_RUN_KEY


NEW_COLUMN = r"""
import sys
from ltrain_collector import promoted_columns as promoted

promoted.PROMOTED += (
    promoted.PromotedColumn(
        name="AcmeTenant", type=promoted.WORD, doc="The tenant.", record=("acme.tenant",),
        resource=("acme.tenant",), signals=promoted.BOTH, since="99_acme_tenant",
        in_transforms=True,
    ),
)
promoted.PLACEHOLDERS |= promoted.placeholders("traces") | promoted.placeholders("logs")

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from setup.reference import attributes_page

from ltrain_collector import schema
from ltrain_collector.signals import LOGS, TRACES
from ltrain_collector.store import Store
from ltrain_transforms.recipe import Source
from ltrain_transforms.source import Selection, read_spans

spans = ExportTraceServiceRequest()
resource = spans.resource_spans.add()
resource.resource.attributes.add(key="acme.tenant").value.string_value = "one"
span = resource.scope_spans.add().spans.add(name="chat", start_time_unix_nano=10**18)
span.trace_id, span.span_id = bytes([1]) * 16, bytes([1]) * 8
span.attributes.add(key="ltrain.rollout.id").value.string_value = "r"
logs = ExportLogsServiceRequest()
record = logs.resource_logs.add().scope_logs.add().log_records.add(time_unix_nano=10**18)
record.attributes.add(key="acme.tenant").value.string_value = "two"


def insert(store, signal, request):
    for table, block in signal.encode_local(request).blocks.items():
        store.insert_rows(schema.insert_target(table), block.payload)


for folder, older in (("new", ""), ("old", sys.argv[2])):
    with Store.open(f"chdb://{sys.argv[1]}/{folder}") as store:
        if older:
            store.command("CREATE DATABASE otel")
            for statement in open(older).read().split(";\n"):
                store.command(statement)
            insert(store, TRACES, spans)
        store.migrate()
        insert(store, TRACES, spans)
        insert(store, LOGS, logs)
        assert store.query("SELECT AcmeTenant FROM otel.spans").rows() == [("one",)]
        assert store.query("SELECT AcmeTenant FROM otel.logs").rows() == [("two",)]
        frame = read_spans(store, Source(), Selection(rollouts=("r",)))[0]
        assert frame["acme_tenant"].to_list() == ["one"]
assert "| `AcmeTenant` | `otel.spans`, `otel.logs` | `acme.tenant`" in attributes_page()
"""


def test_a_new_column_needs_its_record_only(tmp_path: Path) -> None:
    command = [sys.executable, "-c", NEW_COLUMN, str(tmp_path), str(OLD)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_column_reads_its_attributes_in_order() -> None:
    column = PromotedColumn(name="TaskId", type=NUMBER, doc="", record=("a", "b"), resource=("c",))
    assert (column.snake_name, column.definition("logs")) == (
        "task_id",
        "TaskId UInt32 MATERIALIZED toUInt32OrZero(multiIf(LogAttributes['a'] != '', "
        "LogAttributes['a'], LogAttributes['b'] != '', LogAttributes['b'], "
        "ResourceAttributes['c'])) CODEC(T64, ZSTD(1))",
    )
