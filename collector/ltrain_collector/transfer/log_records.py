"""Convert rows of `otel.logs` to OTLP requests."""

from collections.abc import Sequence
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from ltrain_collector.transfer.fields import Row, add_attributes, parse_id

HEAD = (
    "ResourceSchemaUrl",
    "ResourceAttributes",
    "ScopeSchemaUrl",
    "ScopeName",
    "ScopeVersion",
    "ScopeAttributes",
)


def logs_request(rows: Sequence[Row]) -> ExportLogsServiceRequest:
    """Return a request with the log records of `rows`, in their order."""
    request = ExportLogsServiceRequest()
    previous_head: list[Any] = []
    for row in rows:
        head = [row[name] for name in HEAD]
        if head != previous_head:
            resource = request.resource_logs.add(schema_url=row["ResourceSchemaUrl"])
            add_attributes(resource.resource.attributes, row["ResourceAttributes"])
            scoped = resource.scope_logs.add(schema_url=row["ScopeSchemaUrl"])
            scoped.scope.name, scoped.scope.version = row["ScopeName"], row["ScopeVersion"]
            add_attributes(scoped.scope.attributes, row["ScopeAttributes"])
            previous_head = head
        _record(scoped.log_records.add(), row)
    return request


def _record(record: Any, row: Row) -> None:
    record.time_unix_nano = row["Timestamp"]
    record.trace_id, record.span_id = parse_id(row["TraceId"]), parse_id(row["SpanId"])
    record.flags = row["TraceFlags"]
    record.severity_text, record.severity_number = row["SeverityText"], row["SeverityNumber"]
    record.body.string_value, record.event_name = row["Body"], row["EventName"]
    add_attributes(record.attributes, row["LogAttributes"])
