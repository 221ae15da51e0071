"""Whether content is recorded: OpenTelemetry's own switch, heard by those that have another."""

import os

SWITCH = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
OTHERS = {
    "TRACELOOP_TRACE_CONTENT": "false",
    "OPENINFERENCE_HIDE_INPUTS": "true",
    "OPENINFERENCE_HIDE_OUTPUTS": "true",
}
"""What instrumentors with switches of their own are told when it is off."""


def recorded() -> bool:
    """Say whether messages, arguments and results belong on spans."""
    return os.environ.get(SWITCH, "true").strip().upper() in ("SPAN_ONLY", "SPAN_AND_EVENT", "TRUE")


def hand_on() -> None:
    """Switch the others off where it is off, and they are not set."""
    if not recorded():
        for name, value in OTHERS.items():
            os.environ.setdefault(name, value)
