"""A signal is declared once: ingest, migration, status, export and prune read the record."""

import subprocess
import sys
from pathlib import Path

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from ltrain_collector.signals import METRICS, SIGNALS, TABLES, Table
from ltrain_collector.store import Store

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "collector" / "ltrain_collector"
OWNERS = ("signals", "ddl")
"""The folders that a new signal changes."""

NEW_SIGNAL = r"""
import sys
from dataclasses import replace
from pathlib import Path

import ltrain_collector.signals as signals
from ltrain_collector.signals import LOGS, Block, Retention, Rows

[logs], NAME = LOGS.tables, "otel.otel_audit"


def encode(request, grant):
    rows = LOGS.encode(request, grant)
    return Rows({NAME: block for block in rows.blocks.values()}, rows.rejected, rows.reason)


table = replace(
    logs, name=NAME, view="otel.audit", steps=("02_audit",), view_files=("05_audit",),
    retention=Retention.AGE, order="Timestamp",
)
AUDIT = replace(
    LOGS, name="audit", path="/v1/audit", service="audit.v1.AuditService", tables=(table,),
    encode=encode,
)
signals.SIGNALS = (*signals.SIGNALS, AUDIT)
signals.TABLES[NAME] = table

from ltrain_collector import admin, schema
from ltrain_collector.ingest import Intake
from ltrain_collector.metrics import OwnMetrics
from ltrain_collector.server import otlp_grpc, otlp_http
from ltrain_collector import schema
from ltrain_collector.store import EmbeddedBackend, Engine, Store
from ltrain_collector.transfer import commands

real, folder = schema._ddl, Path(sys.argv[2])
schema._ddl = lambda name: folder / f"{name}.sql" if "audit" in name else real(name)
sql = "\n".join(real(step).read_text() for step in logs.steps)
(folder / "02_audit.sql").write_text(sql.replace("otel.otel_logs", NAME))
(folder / "05_audit.sql").write_text("CREATE OR REPLACE VIEW {view} AS SELECT * FROM {table};")

request = AUDIT.request()
record = request.resource_logs.add().scope_logs.add().log_records.add(time_unix_nano=10**18)
record.body.string_value = "opened"
engine = Engine(Path(sys.argv[1]))
store = Store(EmbeddedBackend(engine), "audit")
store.migrate()
for name, block in AUDIT.encode_local(request).blocks.items():
    store.insert_rows(schema.insert_target(name), block.payload)
assert otlp_http.PATHS["/v1/audit"] is AUDIT
assert otlp_grpc.METHODS["/audit.v1.AuditService/Export"] is AUDIT
metrics = OwnMetrics()
Intake(engine, metrics.meter)
counted = {sample.labels.get("signal", "") for sample in metrics.samples()}
assert counted - {""} == {signal.name for signal in signals.SIGNALS}
assert commands.SIGNAL_NAMES["audit"] is AUDIT
assert admin.store_status(store)["audit"]["rows"] == 1
assert admin.describe_records(store) == "1 log record"
[out] = commands.export_requests(store, "true", {}, AUDIT)
assert out.resource_logs[0].scope_logs[0].log_records[0].body.string_value == "opened"
counts = admin.prune(store, admin.PruneFilter(before=admin.days_ago(1)), True)
assert {each.table: each.rows for each in counts}[NAME] == 1
assert admin.store_status(store)["audit"]["rows"] == 0
store.close()
engine.close()
"""


def test_a_new_signal_needs_its_record_and_ddl_only(tmp_path: Path) -> None:
    command = [sys.executable, "-c", NEW_SIGNAL, str(tmp_path / "store"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_only_the_signals_name_their_tables() -> None:
    outside = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if not str(path.relative_to(PACKAGE)).startswith(OWNERS)
        for table in TABLES
        if f'"{table}"' in path.read_text()
    }
    assert outside == set()


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_the_ddl_has_the_columns_of_the_record(folder: Store, table: Table) -> None:
    stored = folder.query(f"DESCRIBE TABLE {table.name}")
    written = stored.filter(stored["default_type"] == "")["name"].to_list()
    assert sorted(table.columns) == sorted(written)


def test_a_signal_has_the_names_of_otlp() -> None:
    keys = {signal.name: (signal.json_key, signal.noun) for signal in SIGNALS}
    assert keys["traces"] == ("resourceSpans", "spans")
    assert keys["logs"] == ("resourceLogs", "log records")
    assert keys["metrics"] == ("resourceMetrics", "data points")


def test_the_stored_part_of_a_request_is_kept() -> None:
    request = ExportMetricsServiceRequest()
    for name in ("kept", "ltrain_collector_forged"):
        metric = request.resource_metrics.add().scope_metrics.add().metrics.add(name=name)
        for time_unix_nano in (1, 1 << 63):  # the second is far in the future
            metric.gauge.data_points.add(time_unix_nano=time_unix_nano, as_int=7)
    rows = METRICS.encode_body(request.SerializeToString(), forwarder="one")
    assert (rows.count, rows.rejected) == (1, 3)
    [kept] = ExportMetricsServiceRequest.FromString(rows.request).resource_metrics
    assert [(one.key, one.value.string_value) for one in kept.resource.attributes] == [
        ("ltrain.forwarded_by", "one")
    ]
    [metric] = kept.scope_metrics[0].metrics
    assert (metric.name, [one.time_unix_nano for one in metric.gauge.data_points]) == ("kept", [1])


def test_a_request_names_its_forwarders() -> None:
    """Two requests that other collectors forwarded may be one, so each resource counts."""
    request = ExportMetricsServiceRequest()
    for before in ("", "two", "zero,one", "ones"):
        owner = request.resource_metrics.add()
        if before:
            owner.resource.attributes.add(key="ltrain.forwarded_by").value.string_value = before
        metric = owner.scope_metrics.add().metrics.add(name=before or "new")
        metric.gauge.data_points.add(time_unix_nano=1, as_int=7)
    body = request.SerializeToString()
    rows = METRICS.encode_body(body, forwarder="one")
    assert (rows.count, rows.rejected, rows.returned) == (3, 0, True)
    sent = ExportMetricsServiceRequest.FromString(rows.request).resource_metrics
    named = [[one.value.string_value for one in owner.resource.attributes] for owner in sent]
    assert named == [["one"], ["two,one"], ["ones,one"]]
    unforwarded = METRICS.encode_body(body)
    assert (unforwarded.count, unforwarded.request, unforwarded.returned) == (4, b"", False)
    assert METRICS.encode_body(b"", forwarder="one").request == b""
