"""What leaves the process: redaction, limits of size, and OpenTelemetry's switches for content."""

from ltrain_instrument.privacy import content
from ltrain_instrument.privacy.redaction import remove_url_credentials
from ltrain_instrument.privacy.sanitizer import Sanitizer

__all__ = [
    "Sanitizer",
    "content",
    "remove_url_credentials",
]
