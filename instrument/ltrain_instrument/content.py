"""Whether content is recorded: OpenTelemetry's own switch, for instrumentation that lacks one."""

import os

SWITCH = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"


def recorded() -> bool:
    """Say whether messages, arguments and results belong on spans."""
    return os.environ.get(SWITCH, "true").strip().upper() in ("SPAN_ONLY", "SPAN_AND_EVENT", "TRUE")
