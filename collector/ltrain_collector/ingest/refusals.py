"""Why an OTLP request is not taken, and what its client hears: over HTTP, over gRPC.

The numbers of gRPC are written out, so that who only encodes need not import it.
"""

from ltrain_collector.errors import BadRequest
from ltrain_instrument.errors import LtrainError


class Refusal(LtrainError):
    """An OTLP request that is not taken."""

    status = 503
    """HTTP's number."""
    code = 14
    """gRPC's: UNAVAILABLE."""
    reason = "engine"
    """Under which it is counted."""
    again = True
    """Whether the client may try again; then it is told when."""


class Malformed(Refusal, BadRequest):
    """Bytes that are not what they are said to be."""

    status, code, reason, again = 400, 3, "malformed", False


class TooLarge(Refusal, BadRequest):
    """More than one request may hold."""

    status, code, reason, again = 413, 3, "too_large", False


class Unsupported(Refusal, BadRequest):
    """A type or a compression that is not read here."""

    status, code, reason, again = 415, 12, "unsupported", False


class TooSlow(Refusal, TimeoutError):
    """A body that does not end."""

    code, reason = 4, "too_slow"


class Overloaded(Refusal, MemoryError):
    """More is waiting than memory should hold."""

    code, reason = 8, "overloaded"


class Unavailable(Refusal, RuntimeError):
    """The engine did not take the rows."""
