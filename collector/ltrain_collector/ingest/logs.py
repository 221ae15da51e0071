"""Log records become rows of `otel_logs`, in RowBinary, with the values the exporter writes.

The fields are in the order of `schema.LOG_COLUMNS`.
"""

import time

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, ResourceLogs

from ltrain_collector import claims, schema
from ltrain_collector.ingest.rowbinary import short, string, unsigned64
from ltrain_collector.ingest.rows import AHEAD, Block, Rejected, Repeats, Rows
from ltrain_collector.ingest.traces import NO_SPAN, NO_TRACE
from ltrain_collector.ingest.values import attributes, service_of, text
from ltrain_collector.keys import Grant


def encode(request: ExportLogsServiceRequest, grant: Grant | None = None) -> Rows:
    """Give the rows of one request; `grant` is what its client may claim.

    Raises:
        TooLarge: when they repeat too much.
    """
    writer = _Writer(grant)
    for resource_logs in request.resource_logs:
        writer.resource(resource_logs)
    rejected = writer.rejected
    blocks = {schema.LOGS: Block(b"".join(writer.parts), writer.count)} if writer.count else {}
    return Rows(blocks, rejected.count, rejected.reason)


class _Writer:
    def __init__(self, grant: Grant | None) -> None:
        self.parts: list[bytes] = []
        self.count = 0
        self.rejected = Rejected()
        self.repeats = Repeats()
        self.latest = time.time_ns() + AHEAD
        self.grant = grant

    def resource(self, logs: ResourceLogs) -> None:
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
            self.repeats.add(head, len(scoped.log_records))
            for record in scoped.log_records:
                claimed = claims.fault(self.grant, logs.resource, scope, record)
                if fault := self.fault(record) or claimed:
                    self.rejected.add(fault)
                else:
                    claims.stamp(self.grant, record)
                    self.record(record, service, head)

    def fault(self, record: LogRecord) -> str:
        if _time(record) >= self.latest:
            return "time_unix_nano is more than a year ahead"
        return ""

    def record(self, record: LogRecord, service: bytes, head: bytes) -> None:
        """Append one row; `head` is what all records of one resource and scope share."""
        self.parts += (
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
        self.count += 1


def _time(record: LogRecord) -> int:
    """A record that was not timed has the time at which it was seen."""
    return record.time_unix_nano or record.observed_time_unix_nano


def _id(given: bytes, none: bytes) -> bytes:
    """An id that cannot be one is none: the record stays, as OTLP has it."""
    return string(given.hex()) if len(given) == len(none) and given != none else b"\0"
