"""Spans on disk before `end()` returns, and sent until the collector acknowledges them."""

from typing import TYPE_CHECKING

from ltrain_instrument.face import open_face

if TYPE_CHECKING:
    from ltrain_instrument.delivery.disk_quota import folder_size
    from ltrain_instrument.delivery.otlp_client import (
        Authorization,
        Destination,
        Sender,
        SendResult,
        SendStatus,
        parse_headers,
        seconds_of_retry_after,
        traces_url,
    )
    from ltrain_instrument.delivery.segment import SUFFIX
    from ltrain_instrument.delivery.signal_gate import SignalGate, gate_processors
    from ltrain_instrument.delivery.span_processor import SpanEncoder, SpoolSpanProcessor
    from ltrain_instrument.delivery.spool import Spool, send_leftover_spans
    from ltrain_instrument.delivery.telemetry import create_tracer_provider

open_face(__name__)
