"""Log records become rows of `otel_logs`, in RowBinary, with the values the exporter writes.

The fields are in the order of `schema.LOG_COLUMNS`.
"""

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, ResourceLogs

from ltrain_collector import schema
from ltrain_collector.grants import Grant
from ltrain_collector.ingest.rowbinary import short, string, unsigned64
from ltrain_collector.ingest.rows import Rows
from ltrain_collector.ingest.traces import NO_SPAN, NO_TRACE
from ltrain_collector.ingest.values import attributes, service_of, text
from ltrain_collector.ingest.writer import Writer


def encode(request: ExportLogsServiceRequest, grant: Grant | None = None) -> Rows:
    """Give the rows of one request; `grant` is what its client may claim.

    Raises:
        TooLarge: when they repeat too much.
    """
    writer = Writer(grant)
    for resource_logs in request.resource_logs:
        _write(writer, resource_logs)
    return writer.rows()


def _write(writer: Writer, logs: ResourceLogs) -> None:
    given = logs.resource.attributes
    service = short(service_of(given))
    resource = short(logs.schema_url) + attributes(given)
    for scoped in logs.scope_logs:
        scope = scoped.scope
        head = b"".join(
            (
                resource,
                short(scoped.schema_url),
                short(scope.name),
                short(scope.version),
                attributes(scope.attributes),
            )
        )
        writer.repeats(head, len(scoped.log_records))
        for record in scoped.log_records:
            claimed = writer.claimed(logs.resource, scope, record)
            if writer.takes(record, writer.ahead(_time(record)) or claimed):
                writer.add(schema.LOGS, _row(record, service, head))


def _row(record: LogRecord, service: bytes, head: bytes) -> tuple[bytes, ...]:
    """Give the fields of one row; `head` is what all records of one resource and scope share."""
    return (
        unsigned64(_time(record)),
        _id(record.trace_id, NO_TRACE),
        _id(record.span_id, NO_SPAN),
        bytes((record.flags & 255,)),
        short(record.severity_text),
        bytes((record.severity_number & 255,)),
        service,
        string(record.body.string_value or text(record.body)),
        head,
        attributes(record.attributes),
        short(record.event_name),
    )


def _time(record: LogRecord) -> int:
    """A record that was not timed has the time at which it was seen."""
    return record.time_unix_nano or record.observed_time_unix_nano


def _id(given: bytes, none: bytes) -> bytes:
    """An id that cannot be one is none: the record stays, as OTLP has it."""
    return string(given.hex()) if len(given) == len(none) and given != none else b"\0"
