"""Errors of OTLP requests, with their HTTP and gRPC statuses.

gRPC codes are numbers here, so that encoding does not import gRPC.
"""

from ltrain_collector.errors import BadRequest
from ltrain_instrument.errors import LtrainError


class OtlpError(LtrainError):
    """An OTLP request that is not stored."""

    status = 503
    """HTTP status."""
    code = 14
    """gRPC code; 14 is UNAVAILABLE."""
    reason = "engine"
    """The reason under which it is counted."""
    retryable = True
    """Whether the client can retry; the response then names a delay."""


class Malformed(OtlpError, BadRequest):
    """A body that does not have the announced type or encoding."""

    status, code, reason, retryable = 400, 3, "malformed", False


class TooLarge(OtlpError, BadRequest):
    """A request that is larger than allowed."""

    status, code, reason, retryable = 413, 3, "too_large", False


class Unsupported(OtlpError, BadRequest):
    """A content type or compression that is not supported."""

    status, code, reason, retryable = 415, 12, "unsupported", False


class TooSlow(OtlpError, TimeoutError):
    """A body that does not arrive in time."""

    code, reason = 4, "too_slow"


class Overloaded(OtlpError, MemoryError):
    """The requests in memory have reached their limit."""

    code, reason = 8, "overloaded"


class Unavailable(OtlpError, RuntimeError):
    """The engine could not store the rows."""
