"""The switch for recording content: OpenTelemetry's own, applied to instrumentors with another."""

import os

SWITCH = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
OTHER_SWITCHES = {
    "TRACELOOP_TRACE_CONTENT": "false",
    "OPENINFERENCE_HIDE_INPUTS": "true",
    "OPENINFERENCE_HIDE_OUTPUTS": "true",
}
"""Switches of other instrumentors, with the values that turn content off."""


def is_content_recorded() -> bool:
    """Return whether messages, arguments and results are recorded on spans."""
    return os.environ.get(SWITCH, "true").strip().upper() in ("SPAN_ONLY", "SPAN_AND_EVENT", "TRUE")


def hide_content_elsewhere() -> None:
    """Turn content off in the other instrumentors too, unless their switches are set."""
    if not is_content_recorded():
        for name, value in OTHER_SWITCHES.items():
            os.environ.setdefault(name, value)
