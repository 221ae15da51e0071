"""Rows of `otel.logs` become an OTLP request again."""

from collections.abc import Sequence
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from ltrain_collector.transfer.fields import Row, fill, id_of

HEAD = (
    "ResourceSchemaUrl",
    "ResourceAttributes",
    "ScopeSchemaUrl",
    "ScopeName",
    "ScopeVersion",
    "ScopeAttributes",
)


def request(rows: Sequence[Row]) -> ExportLogsServiceRequest:
    """Give the request whose log records are `rows`, in their order."""
    made = ExportLogsServiceRequest()
    before: list[Any] = []
    for row in rows:
        head = [row[name] for name in HEAD]
        if head != before:
            resource = made.resource_logs.add(schema_url=row["ResourceSchemaUrl"])
            fill(resource.resource.attributes, row["ResourceAttributes"])
            scoped = resource.scope_logs.add(schema_url=row["ScopeSchemaUrl"])
            scoped.scope.name, scoped.scope.version = row["ScopeName"], row["ScopeVersion"]
            fill(scoped.scope.attributes, row["ScopeAttributes"])
            before = head
        _record(scoped.log_records.add(), row)
    return made


def _record(record: Any, row: Row) -> None:
    record.time_unix_nano = row["Timestamp"]
    record.trace_id, record.span_id = id_of(row["TraceId"]), id_of(row["SpanId"])
    record.flags = row["TraceFlags"]
    record.severity_text, record.severity_number = row["SeverityText"], row["SeverityNumber"]
    record.body.string_value, record.event_name = row["Body"], row["EventName"]
    fill(record.attributes, row["LogAttributes"])
