"""OpenTelemetry's limits in the environment: a misspelt one makes its SDK impossible to import."""

import logging
import os
from collections.abc import MutableMapping

LENGTHS = ("OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", "OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT")
COUNTS = (
    *("OTEL_ATTRIBUTE_COUNT_LIMIT", "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT"),
    *("OTEL_EVENT_ATTRIBUTE_COUNT_LIMIT", "OTEL_LINK_ATTRIBUTE_COUNT_LIMIT"),
    *("OTEL_SPAN_EVENT_COUNT_LIMIT", "OTEL_SPAN_LINK_COUNT_LIMIT"),
)

_logger = logging.getLogger("ltrain.distro")


def misspelt(text: str) -> bool:
    """Say whether a limit is no number; an empty one is none at all."""
    return bool(text.strip()) and not text.strip().isdigit()


def leave_out_misspelt(environ: MutableMapping[str, str] = os.environ) -> None:
    """Take limits that are no numbers out of the environment, each with a warning."""
    for name in (*LENGTHS, *COUNTS):
        if misspelt(environ.get(name, "")):
            text = environ.pop(name)
            _logger.warning("ltrain: %s='%s' is not an integer and is left out.", name, text)
