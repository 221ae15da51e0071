"""OTLP over HTTP and gRPC into the store."""

from ltrain_collector.ingest.instruments import SECONDS_BOUNDS
from ltrain_collector.ingest.intake import (
    BODY_TIMEOUT,
    MAX_BODY_BYTES,
    MAX_JSON_BYTES,
    RETRY_AFTER,
    Intake,
    error_status,
    rpc_status,
    serialize_message,
)

__all__ = [
    "BODY_TIMEOUT",
    "MAX_BODY_BYTES",
    "MAX_JSON_BYTES",
    "RETRY_AFTER",
    "SECONDS_BOUNDS",
    "Intake",
    "error_status",
    "rpc_status",
    "serialize_message",
]
