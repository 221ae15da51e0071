"""OpenTelemetry's limits in the environment: an invalid one makes its SDK fail at import."""

import logging
import os
from collections.abc import MutableMapping

LENGTH_LIMITS = ("OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", "OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT")
COUNT_LIMITS = (
    *("OTEL_ATTRIBUTE_COUNT_LIMIT", "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT"),
    *("OTEL_EVENT_ATTRIBUTE_COUNT_LIMIT", "OTEL_LINK_ATTRIBUTE_COUNT_LIMIT"),
    *("OTEL_SPAN_EVENT_COUNT_LIMIT", "OTEL_SPAN_LINK_COUNT_LIMIT"),
)

_logger = logging.getLogger("ltrain.distro")


def is_invalid_limit(text: str) -> bool:
    """Return whether the text of a limit is not a number; an empty text means no limit."""
    return bool(text.strip()) and not text.strip().isdigit()


def remove_invalid_limits(environ: MutableMapping[str, str] = os.environ) -> None:
    """Remove limits that are not numbers from the environment, with a warning each."""
    for name, text in pop_invalid_limits(environ).items():
        _logger.warning("ltrain: %s='%s' is not an integer and is ignored.", name, text)


def pop_invalid_limits(environ: MutableMapping[str, str] = os.environ) -> dict[str, str]:
    """Remove limits that are not numbers from the environment and return them."""
    names = (*LENGTH_LIMITS, *COUNT_LIMITS)
    return {name: environ.pop(name) for name in names if is_invalid_limit(environ.get(name, ""))}
