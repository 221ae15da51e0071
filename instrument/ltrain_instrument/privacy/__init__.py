"""Content that leaves the process: redaction, size limits, and OpenTelemetry's content switches."""

from typing import TYPE_CHECKING

from ltrain_instrument.face import open_face

if TYPE_CHECKING:
    from ltrain_instrument.privacy import content
    from ltrain_instrument.privacy.redaction import MARK, OPENINFERENCE_KIND, remove_url_credentials
    from ltrain_instrument.privacy.sanitizer import Sanitizer, SpanField, write_span_fields

open_face(__name__)
