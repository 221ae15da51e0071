"""The agent's process from start to exit: provider, children, exits and span counts."""

from typing import TYPE_CHECKING

from ltrain_instrument.face import open_face

if TYPE_CHECKING:
    from ltrain_instrument.lifecycle import capture, existing_provider, subprocesses
    from ltrain_instrument.lifecycle.capture import Capture, flush, on_shutdown
    from ltrain_instrument.lifecycle.process_span import open_process_span
    from ltrain_instrument.lifecycle.span_counter import SpanCounter

open_face(__name__)
