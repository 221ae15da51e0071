"""What every HTTP server of ltrain needs: connection limits, origin checks, compressed bodies."""

from ltrain_collector.http.asgi import (
    ClientGone,
    HttpError,
    Receive,
    Scope,
    Send,
    body_parts,
    body_too_large,
    request_headers,
    send_response,
)
from ltrain_collector.http.browsers import DENIED_STATUSES, ORIGIN, BrowserGuard
from ltrain_collector.http.budget import MAX_REQUEST_BYTES, MemoryBudget, RequestBuffer
from ltrain_collector.http.connection import MAX_HEAD_BYTES, connection_factory
from ltrain_collector.http.descriptors import Descriptors, raise_limit
from ltrain_collector.http.otlp_refusals import (
    Malformed,
    OtlpError,
    Overloaded,
    TooLarge,
    TooSlow,
    Unavailable,
    Unsupported,
)
from ltrain_collector.http.refusals import Reason, RefusalCounts
from ltrain_collector.http.unpackers import Unpacker, Zlib

__all__ = [
    "DENIED_STATUSES",
    "MAX_HEAD_BYTES",
    "MAX_REQUEST_BYTES",
    "ORIGIN",
    "BrowserGuard",
    "ClientGone",
    "Descriptors",
    "HttpError",
    "Malformed",
    "MemoryBudget",
    "OtlpError",
    "Overloaded",
    "Reason",
    "Receive",
    "RefusalCounts",
    "RequestBuffer",
    "Scope",
    "Send",
    "TooLarge",
    "TooSlow",
    "Unavailable",
    "Unpacker",
    "Unsupported",
    "Zlib",
    "body_parts",
    "body_too_large",
    "connection_factory",
    "raise_limit",
    "request_headers",
    "send_response",
]
