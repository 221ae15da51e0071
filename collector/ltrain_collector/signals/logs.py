"""Logs: records as RowBinary rows of `otel_logs`, with the exporter's values, and back."""

from collections.abc import Sequence
from itertools import groupby, islice
from operator import itemgetter
from typing import Any

from google.protobuf.unknown_fields import UnknownFieldSet
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (
    ExportLogsServiceRequest,
    ExportLogsServiceResponse,
)
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, ResourceLogs

from ltrain_collector import promoted_columns
from ltrain_collector.access import UNLIMITED, IngestPolicy
from ltrain_collector.signals.rowbinary import short_string, string, unsigned64
from ltrain_collector.signals.signal import Retention, Signal, Table
from ltrain_collector.signals.traces import NO_SPAN, NO_TRACE
from ltrain_collector.signals.values import (
    Row,
    add_attributes,
    attributes,
    parse_id,
    service_name,
    value_text,
)
from ltrain_collector.signals.writer import Rows, RowWriter

_NAME = "otel.otel_logs"

_COLUMNS = (
    "Timestamp",
    "TraceId",
    "SpanId",
    "TraceFlags",
    "SeverityText",
    "SeverityNumber",
    "ServiceName",
    "Body",
    "ResourceSchemaUrl",
    "ResourceAttributes",
    "ScopeSchemaUrl",
    "ScopeName",
    "ScopeVersion",
    "ScopeAttributes",
    "LogAttributes",
    "EventName",
)
"""In the order of the fields that `_row` returns."""

_HEAD = _COLUMNS[8:14]
"""The columns that the records of one scope share."""


def encode_logs(request: ExportLogsServiceRequest, policy: IngestPolicy = UNLIMITED) -> Rows:
    """Return the rows of a request; `policy` is what its key allows."""
    writer = RowWriter(policy)
    for resource_logs in request.resource_logs:
        _write(writer, resource_logs)
    return writer.rows()


def _write(writer: RowWriter, logs: ResourceLogs) -> None:
    resource_attributes = logs.resource.attributes
    service = short_string(service_name(resource_attributes))
    resource = short_string(logs.schema_url) + attributes(resource_attributes)
    misplaced = writer.policy.resource_violation(logs.resource)
    for scoped in logs.scope_logs:
        scope = scoped.scope
        shared = misplaced or writer.policy.scope_violation(scope)
        head = b"".join(
            (
                resource,
                short_string(scoped.schema_url),
                short_string(scope.name),
                short_string(scope.version),
                attributes(scope.attributes),
            )
        )
        writer.count_repeated(head, len(scoped.log_records))
        for record in scoped.log_records:
            violation = shared or writer.policy.record_violation(record)
            if writer.accept(record, writer.time_error(_time(record)) or violation):
                writer.add(_NAME, _row(record, service, head))


def _row(record: LogRecord, service: bytes, head: bytes) -> tuple[bytes, ...]:
    """Return the fields of one row; `head` are those that a resource and scope share."""
    return (
        unsigned64(_time(record)),
        _id(record.trace_id, NO_TRACE),
        _id(record.span_id, NO_SPAN),
        bytes((record.flags & 255,)),
        short_string(record.severity_text),
        bytes((record.severity_number & 255,)),
        service,
        string(record.body.string_value or value_text(record.body)),
        head,
        attributes(record.attributes),
        short_string(record.event_name),
    )


def _time(record: LogRecord) -> int:
    """Return the time of a record, else the time at which it was observed."""
    return record.time_unix_nano or record.observed_time_unix_nano


def _id(raw: bytes, invalid: bytes) -> bytes:
    """Return an id in hex, empty where it is invalid: OTLP keeps a log record without a trace."""
    return string(raw.hex()) if len(raw) == len(invalid) and raw != invalid else b"\0"


def logs_request(rows: Sequence[Row]) -> ExportLogsServiceRequest:
    """Return a request with the log records of `rows`, in their order."""
    request = ExportLogsServiceRequest()
    for head, records in groupby(rows, itemgetter(*_HEAD)):
        resource_url, resource_attributes, scope_url, name, version, scope_attributes = head
        resource = request.resource_logs.add(schema_url=resource_url)
        add_attributes(resource.resource.attributes, resource_attributes)
        scoped = resource.scope_logs.add(schema_url=scope_url)
        scoped.scope.name, scoped.scope.version = name, version
        add_attributes(scoped.scope.attributes, scope_attributes)
        for row in records:
            _add_record(scoped.log_records.add(), row)
    return request


def _add_record(record: Any, row: Row) -> None:
    record.time_unix_nano = row["Timestamp"]
    record.trace_id, record.span_id = parse_id(row["TraceId"]), parse_id(row["SpanId"])
    record.flags = row["TraceFlags"]
    record.severity_text, record.severity_number = row["SeverityText"], row["SeverityNumber"]
    record.body.string_value, record.event_name = row["Body"], row["EventName"]
    add_attributes(record.attributes, row["LogAttributes"])


def _matches(message: ExportLogsServiceRequest) -> bool:
    records = (
        one for r in message.resource_logs for scoped in r.scope_logs for one in scoped.log_records
    )
    return all(_is_record(one) for one in islice(records, 1))


def _is_record(one: LogRecord) -> bool:
    if _time(one):
        return True
    ids = len(one.trace_id) in (0, 16) and len(one.span_id) in (0, 8)
    return ids and not len(UnknownFieldSet(one))


LOGS = Signal(
    name="logs",
    path="/v1/logs",
    service="opentelemetry.proto.collector.logs.v1.LogsService",
    request=ExportLogsServiceRequest,
    response=ExportLogsServiceResponse,
    doc="a log record, once: the exporter's columns, `IngestedAt`, and "
    "[ltrain's](attributes.md#columns-of-the-store): `RunId`, `RolloutId`, `Attempt`, `Sender`",
    records="log_records",
    tables=(
        Table(
            name=_NAME,
            view="otel.logs",
            columns=_COLUMNS,
            steps=("02_logs", "08_sender_logs", *promoted_columns.step_names("logs")),
            view_files=("05_logs",),
            to_request=logs_request,
            order="RunId, RolloutId, Attempt, TraceId, Timestamp",
            valid_ids="match(TraceId, '^([0-9a-f]{32})?$') AND match(SpanId, '^([0-9a-f]{16})?$')",
            retention=Retention.WITH_ROLLOUT,
        ),
    ),
    encode=encode_logs,
    matches=_matches,
)
