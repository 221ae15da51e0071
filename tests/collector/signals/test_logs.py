from datetime import UTC, datetime

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, SeverityNumber
from tests.otlp import insert_otlp

from ltrain_collector.signals import LOGS
from ltrain_collector.signals.logs import encode_logs
from ltrain_collector.store import Store

NOON = 1_790_000_000_000_000_000
MOMENT = datetime.fromtimestamp(NOON / 1e9, UTC)


def one_record() -> tuple[ExportLogsServiceRequest, LogRecord]:
    request = ExportLogsServiceRequest()
    resource = request.resource_logs.add(schema_url="https://resource")
    resource.resource.attributes.add(key="service.name").value.string_value = "agent"
    resource.resource.attributes.add(key="ltrain.run.id").value.string_value = "demo"
    scoped = resource.scope_logs.add(schema_url="https://scope")
    scoped.scope.name, scoped.scope.version = "sql", "0.1"
    scoped.scope.attributes.add(key="deep").value.bool_value = True
    record = scoped.log_records.add(time_unix_nano=NOON, observed_time_unix_nano=NOON + 5)
    record.body.string_value = "no such table"
    return request, record


def test_a_record_is_stored_as_the_exporter_stores_it(folder: Store) -> None:
    request, record = one_record()
    record.trace_id, record.span_id, record.flags = b"\x01" * 16, b"\x02" * 8, 0x101
    record.severity_number, record.severity_text = SeverityNumber.SEVERITY_NUMBER_WARN, "WARN"
    record.event_name = "sql.failed"
    record.attributes.add(key="ltrain.rollout.id").value.string_value = "r1"
    record.attributes.add(key="ltrain.attempt.id").value.int_value = 1
    insert_otlp(folder, request.SerializeToString(), LOGS)
    (row,) = folder.query("SELECT * EXCEPT (IngestedAt) FROM otel.logs").to_dicts()
    assert row == {
        "Timestamp": MOMENT,
        "TimestampTime": NOON // 10**9,
        "TraceId": "01" * 16,
        "SpanId": "02" * 8,
        "TraceFlags": 1,
        "SeverityText": "WARN",
        "SeverityNumber": 13,
        "ServiceName": "agent",
        "Body": "no such table",
        "ResourceSchemaUrl": "https://resource",
        "ResourceAttributes": {
            "service.name": "agent",
            "ltrain.run.id": "demo",
            "ltrain.sender": "local",
        },
        "ScopeSchemaUrl": "https://scope",
        "ScopeName": "sql",
        "ScopeVersion": "0.1",
        "ScopeAttributes": {"deep": "true"},
        "LogAttributes": {"ltrain.rollout.id": "r1", "ltrain.attempt.id": "1"},
        "EventName": "sql.failed",
        "RunId": "demo",
        "RolloutId": "r1",
        "Attempt": "1",
        "Sender": "local",
    }


def test_a_record_that_was_sent_twice_is_read_once_as_it_was_first(folder: Store) -> None:
    request, record = one_record()
    insert_otlp(folder, request.SerializeToString(), LOGS)
    first = folder.query("SELECT * FROM otel.logs")
    insert_otlp(folder, request.SerializeToString(), LOGS)
    assert folder.query("SELECT * FROM otel.logs").equals(first)
    record.body.string_value = "another"
    insert_otlp(folder, request.SerializeToString(), LOGS)
    bodies = folder.query("SELECT Body FROM otel.logs ORDER BY Body")["Body"].to_list()
    assert bodies == ["another", "no such table"]


def test_a_record_without_a_time_has_its_observed_time(folder: Store) -> None:
    request, record = one_record()
    record.time_unix_nano = 0
    insert_otlp(folder, request.SerializeToString(), LOGS)
    record.observed_time_unix_nano = 0
    record.body.Clear()
    record.body.kvlist_value.values.add(key="rows").value.int_value = 3
    insert_otlp(folder, request.SerializeToString(), LOGS)
    rows = folder.query("SELECT toUnixTimestamp64Nano(Timestamp), Body FROM otel.logs ORDER BY 1")
    assert rows.rows() == [(0, '{"rows":3}'), (NOON + 5, "no such table")]


@pytest.mark.parametrize("trace", [b"", b"\x01", bytes(16), b"\x01" * 17])
def test_an_invalid_id_is_empty_and_the_record_stays(folder: Store, trace: bytes) -> None:
    request, record = one_record()
    record.trace_id = record.span_id = trace
    insert_otlp(folder, request.SerializeToString(), LOGS)
    assert folder.query("SELECT TraceId, SpanId FROM otel.logs").row(0) == ("", "")


def test_a_record_of_another_age_is_rejected_alone() -> None:
    request, record = one_record()
    late = request.resource_logs[0].scope_logs[0].log_records.add()
    late.CopyFrom(record)
    late.time_unix_nano = 2**63
    rows = encode_logs(request)
    assert (rows.count, rows.rejected) == (1, 1)
    assert rows.reason == "time_unix_nano is more than a year ahead"
