"""The three signals of OTLP: their endpoints, messages and encoders."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import DecodeError, Message
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2

from ltrain_collector.access import Grant, Sender
from ltrain_collector.http import Malformed
from ltrain_collector.ingest import logs, messages, metrics, origin, otlp_json, traces
from ltrain_collector.ingest.rows import Rows


@dataclass(frozen=True, slots=True)
class Signal:
    """Traces, logs or metrics."""

    name: str
    path: str
    """URL path of OTLP over HTTP."""
    service: str
    """Service name of OTLP over gRPC."""
    request: type[Message]
    response: type[Message]
    records: str
    """The plural of one record, as in the response's field `rejected_<records>`."""
    encode: Callable[[Any, Grant | None], Rows]

    def encode_body(self, body: bytes, as_json: bool = False, grant: Grant | None = None) -> Rows:
        """Return the rows of a serialized request, with its sender.

        Args:
            grant: what the client's key allows; None: the request has no key.

        Raises:
            BadRequest: the bytes are not such a request, or it has too many rows.
        """
        message = self._parse(body, as_json)
        if as_json or origin.SENDER_BYTES in body:  # JSON can escape the name
            origin.remove_sender(message)
        origin.set_sender(message, Sender.NONE if grant is None else grant.sender)
        return self.encode(message, grant)

    def encode_local(self, message: Message) -> Rows:
        """Return the rows of a request of this process; the sender is `local` if it names none.

        Raises:
            BadRequest: it has too many rows.
        """
        origin.set_sender(message, Sender.LOCAL, replace=False)
        return self.encode(message, None)

    def parse_request(self, body: bytes) -> Message:
        """Parse a serialized request.

        Raises:
            BadRequest: the bytes are not such a request.
        """
        return self._parse(body, False)

    def make_response(self, rows: Rows) -> Any:
        """Return the response for stored rows, with the number of rejected records."""
        response: Any = self.response()
        if rows.rejected:
            setattr(response.partial_success, f"rejected_{self.records}", rows.rejected)
            response.partial_success.error_message = rows.reason
        return response

    def _parse(self, body: bytes, as_json: bool) -> Message:
        if as_json:
            return otlp_json.parse_json(body, self.request)
        messages.check_count(body, self.request.DESCRIPTOR)
        try:
            return self.request.FromString(body)
        except DecodeError as error:
            raise Malformed(
                f"A body of {len(body)} bytes is not an OTLP {self.request.DESCRIPTOR.name} in "
                "protobuf (for JSON, send Content-Type: application/json)."
            ) from error


TRACES = Signal(
    "traces",
    "/v1/traces",
    "opentelemetry.proto.collector.trace.v1.TraceService",
    trace_service_pb2.ExportTraceServiceRequest,
    trace_service_pb2.ExportTraceServiceResponse,
    "spans",
    traces.encode_traces,
)

LOGS = Signal(
    "logs",
    "/v1/logs",
    "opentelemetry.proto.collector.logs.v1.LogsService",
    logs_service_pb2.ExportLogsServiceRequest,
    logs_service_pb2.ExportLogsServiceResponse,
    "log_records",
    logs.encode_logs,
)

METRICS = Signal(
    "metrics",
    "/v1/metrics",
    "opentelemetry.proto.collector.metrics.v1.MetricsService",
    metrics_service_pb2.ExportMetricsServiceRequest,
    metrics_service_pb2.ExportMetricsServiceResponse,
    "data_points",
    metrics.encode_metrics,
)

SIGNALS = (TRACES, LOGS, METRICS)
