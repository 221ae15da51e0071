"""The three signals of OTLP: where each is sent to, what its messages are, how it becomes rows."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import DecodeError, Message
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2

from ltrain_collector.grants import Grant
from ltrain_collector.ingest import logs, messages, metrics, origin, otlp_json, traces
from ltrain_collector.ingest.refusals import Malformed
from ltrain_collector.ingest.rows import Rows
from ltrain_collector.sender import Sender


@dataclass(frozen=True, slots=True)
class Signal:
    """One of traces, logs, metrics."""

    name: str
    path: str
    """HTTP's."""
    service: str
    """gRPC's."""
    request: type[Message]
    response: type[Message]
    records: str
    """What one row is, as the answer counts it: `rejected_<records>`."""
    encode: Callable[[Any, Grant | None], Rows]

    def rows(self, body: bytes, as_json: bool = False, grant: Grant | None = None) -> Rows:
        """Return the rows of one serialised request, which carry its sender.

        Args:
            grant: what its client may claim; None: it showed no key.

        Raises:
            BadRequest: when the bytes are none, or too many rows.
        """
        message = self._message(body, as_json)
        if as_json or origin.MARK in body:  # JSON may write the name in escapes
            origin.forget(message)
        origin.record(message, Sender.NONE if grant is None else grant.sender)
        return self.encode(message, grant)

    def local(self, message: Message) -> Rows:
        """Return the rows of a request of this process; what says no sender is `local`.

        Raises:
            BadRequest: when it is too many rows.
        """
        origin.record(message, Sender.LOCAL, replace=False)
        return self.encode(message, None)

    def parse(self, body: bytes) -> Message:
        """Return the request of these bytes.

        Raises:
            BadRequest: when they are none.
        """
        return self._message(body, False)

    def answer(self, rows: Rows) -> Any:
        """Give what the client hears of rows that are stored."""
        answer: Any = self.response()
        if rows.rejected:
            setattr(answer.partial_success, f"rejected_{self.records}", rows.rejected)
            answer.partial_success.error_message = rows.reason
        return answer

    def _message(self, body: bytes, as_json: bool) -> Message:
        if as_json:
            return otlp_json.parse(body, self.request)
        messages.check(body, self.request.DESCRIPTOR)
        try:
            return self.request.FromString(body)
        except DecodeError as error:
            raise Malformed(
                f"A body of {len(body)} bytes is not an OTLP {self.request.DESCRIPTOR.name} in "
                "protobuf (for JSON, say Content-Type: application/json)."
            ) from error


TRACES = Signal(
    "traces",
    "/v1/traces",
    "opentelemetry.proto.collector.trace.v1.TraceService",
    trace_service_pb2.ExportTraceServiceRequest,
    trace_service_pb2.ExportTraceServiceResponse,
    "spans",
    traces.encode,
)

LOGS = Signal(
    "logs",
    "/v1/logs",
    "opentelemetry.proto.collector.logs.v1.LogsService",
    logs_service_pb2.ExportLogsServiceRequest,
    logs_service_pb2.ExportLogsServiceResponse,
    "log_records",
    logs.encode,
)

METRICS = Signal(
    "metrics",
    "/v1/metrics",
    "opentelemetry.proto.collector.metrics.v1.MetricsService",
    metrics_service_pb2.ExportMetricsServiceRequest,
    metrics_service_pb2.ExportMetricsServiceResponse,
    "data_points",
    metrics.encode,
)

SIGNALS = (TRACES, LOGS, METRICS)
