"""The switch for recording content: OpenTelemetry's own, applied to instrumentors with another."""

import os
import re

SWITCH = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
OTHER_SWITCHES = {
    "TRACELOOP_TRACE_CONTENT": "false",
    "OPENINFERENCE_HIDE_INPUTS": "true",
    "OPENINFERENCE_HIDE_OUTPUTS": "true",
    "ADK_CAPTURE_MESSAGE_CONTENT_IN_SPANS": "false",
}
"""Switches of other instrumentors, with the values that turn content off."""
OPT_IN = "OTEL_SEMCONV_STABILITY_OPT_IN"
UNREDACTED = "gen_ai_unredacted_attributes="
"""An entry of `OPT_IN` by which strands-agents redacts all content that it does not name."""

CONTENT = re.compile(
    r"(input|output)\.value$|tool\.parameters$|llm\.(input|output)_messages\.|llm\.prompts|"
    r"gen_ai\.(input|output)\.messages$|gen_ai\.system_instructions$|"
    r"gen_ai\.(prompt|completion)\b|gen_ai\.tool\.call\.(arguments|result)$|"
    r"traceloop\.entity\.(input|output)$|"
    r"gcp\.vertex\.agent\.(llm_request|llm_response|tool_call_args|tool_response)$"
)
"""Attributes with content, which some instrumentations write although their switch is off."""
CONTENT_OF_EVENTS = ("content", "message", "tool_calls", "tool.result", "gen_ai.event.content")
"""Attributes of events with content."""


def is_content_recorded() -> bool:
    """Return whether messages, arguments and results are recorded on spans."""
    return os.environ.get(SWITCH, "true").strip().upper() in ("SPAN_ONLY", "SPAN_AND_EVENT", "TRUE")


def is_content(part: str, name: str) -> bool:
    """Return whether a value of a span is content.

    Args:
        part: `event` for a value of an event.
    """
    return bool(CONTENT.match(name)) or (part == "event" and name in CONTENT_OF_EVENTS)


def hide_content_elsewhere() -> None:
    """Turn content off in the other instrumentors too, unless their switches are set."""
    if not is_content_recorded():
        for name, value in OTHER_SWITCHES.items():
            os.environ.setdefault(name, value)
        chosen = os.environ.get(OPT_IN, "")
        if UNREDACTED not in chosen:
            os.environ[OPT_IN] = ",".join(filter(None, (chosen, UNREDACTED)))
