"""OTLP over HTTP and gRPC into the store."""

from ltrain_collector.ingest import origin, otlp_json
from ltrain_collector.ingest.counters import (
    SECONDS_BOUNDS,
    Counters,
    Histogram,
    SignalCounters,
    TableCounters,
)
from ltrain_collector.ingest.decompression import too_large
from ltrain_collector.ingest.intake import (
    BODY_TIMEOUT,
    MAX_BODY_BYTES,
    MAX_JSON_BYTES,
    RETRY_AFTER,
    Intake,
)
from ltrain_collector.ingest.responses import error_status, rpc_status, serialize_message
from ltrain_collector.ingest.rows import Block, Rows
from ltrain_collector.ingest.signals import LOGS, METRICS, SIGNALS, TRACES, Signal
from ltrain_collector.ingest.traces import KINDS, STATUSES, encode_traces

__all__ = [
    "BODY_TIMEOUT",
    "KINDS",
    "LOGS",
    "MAX_BODY_BYTES",
    "MAX_JSON_BYTES",
    "METRICS",
    "RETRY_AFTER",
    "SECONDS_BOUNDS",
    "SIGNALS",
    "STATUSES",
    "TRACES",
    "Block",
    "Counters",
    "Histogram",
    "Intake",
    "Rows",
    "Signal",
    "SignalCounters",
    "TableCounters",
    "encode_traces",
    "error_status",
    "origin",
    "otlp_json",
    "rpc_status",
    "serialize_message",
    "too_large",
]
