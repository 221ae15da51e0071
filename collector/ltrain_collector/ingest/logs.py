"""Encode log records as RowBinary rows of `otel_logs`, with the values that the exporter writes.

The fields are in the order of `schema.LOG_COLUMNS`.
"""

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, ResourceLogs

from ltrain_collector import schema
from ltrain_collector.access import Grant
from ltrain_collector.ingest.rowbinary import short_string, string, unsigned64
from ltrain_collector.ingest.rows import Rows
from ltrain_collector.ingest.traces import NO_SPAN, NO_TRACE
from ltrain_collector.ingest.values import attributes, service_name, value_text
from ltrain_collector.ingest.writer import RowWriter


def encode_logs(request: ExportLogsServiceRequest, grant: Grant | None = None) -> Rows:
    """Return the rows of a request; `grant` is what its key allows.

    Raises:
        TooLarge: the rows repeat too many bytes of resources and scopes.
    """
    writer = RowWriter(grant)
    for resource_logs in request.resource_logs:
        _write(writer, resource_logs)
    return writer.rows()


def _write(writer: RowWriter, logs: ResourceLogs) -> None:
    resource_attributes = logs.resource.attributes
    service = short_string(service_name(resource_attributes))
    resource = short_string(logs.schema_url) + attributes(resource_attributes)
    for scoped in logs.scope_logs:
        scope = scoped.scope
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
            violation = writer.policy_violation(logs.resource, scope, record)
            if writer.accept(record, writer.time_error(_time(record)) or violation):
                writer.add(schema.LOGS, _row(record, service, head))


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
