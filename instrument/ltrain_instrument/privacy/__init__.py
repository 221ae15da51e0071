"""What leaves the process: redaction, limits of size, and OpenTelemetry's switches for content."""

from ltrain_instrument.privacy import content
from ltrain_instrument.privacy.otel_limits import (
    COUNT_LIMITS,
    LENGTH_LIMITS,
    is_invalid_limit,
    remove_invalid_limits,
)
from ltrain_instrument.privacy.redaction import remove_url_credentials
from ltrain_instrument.privacy.sanitizer import Sanitizer

__all__ = [
    "COUNT_LIMITS",
    "LENGTH_LIMITS",
    "Sanitizer",
    "content",
    "is_invalid_limit",
    "remove_invalid_limits",
    "remove_url_credentials",
]
