"""Spans on disk before `end()` returns, and sent until the collector acknowledges them."""

from ltrain_instrument.delivery.encoding import SpanEncoder
from ltrain_instrument.delivery.otlp_client import Authorization, Sender, SendStatus, traces_url
from ltrain_instrument.delivery.segment import SUFFIX
from ltrain_instrument.delivery.signal_gate import SignalGate, gate_processors
from ltrain_instrument.delivery.span_processor import SpoolSpanProcessor
from ltrain_instrument.delivery.spool import Spool, send_leftover_spans
from ltrain_instrument.delivery.telemetry import create_tracer_provider

__all__ = [
    "SUFFIX",
    "Authorization",
    "SendStatus",
    "Sender",
    "SignalGate",
    "SpanEncoder",
    "Spool",
    "SpoolSpanProcessor",
    "create_tracer_provider",
    "gate_processors",
    "send_leftover_spans",
    "traces_url",
]
