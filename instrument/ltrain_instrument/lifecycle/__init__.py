"""The agent's process from start to exit: provider, children, exits and span counts."""

from ltrain_instrument.lifecycle import capture, existing_provider, subprocesses
from ltrain_instrument.lifecycle.capture import Capture, flush, on_shutdown
from ltrain_instrument.lifecycle.span_counter import SpanCounter

__all__ = [
    "Capture",
    "SpanCounter",
    "capture",
    "existing_provider",
    "flush",
    "on_shutdown",
    "subprocesses",
]
