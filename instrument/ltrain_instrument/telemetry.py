"""Tracing for ltrain's own processes: every span is on disk when it has ended."""

import logging
from pathlib import Path
from uuid import uuid4

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.resources import SERVICE_INSTANCE_ID, SERVICE_NAME, Resource
from opentelemetry.sdk.trace import (
    ReadableSpan,
    Span,
    SpanLimits,
    SpanProcessor,
    TracerProvider,
    sampling,
)

from ltrain_instrument import settings
from ltrain_instrument.delivery import Authorization
from ltrain_instrument.screen import Screen
from ltrain_instrument.spool import Spool

_logger = logging.getLogger("ltrain.telemetry")


class SpoolProcessor(SpanProcessor):
    """Appends each ended span to a spool before `end()` returns."""

    def __init__(self, spool: Spool, *, strict: bool = False) -> None:
        """`strict` raises what the disk says from the `end()` of the span that it did not take."""
        self._spool, self._strict = spool, strict
        self.lost = 0
        """Spans that the disk did not take."""

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Do nothing: a span counts when it ends."""

    def on_end(self, span: ReadableSpan) -> None:
        """Write the span to disk; a full disk is counted and warned of, and raised if strict."""
        try:
            self._spool.append(encode_spans([span]).SerializeToString())
        except OSError as error:
            if not self.lost:
                _logger.warning("ltrain: spans are lost, the spool cannot be written: %s", error)
            self.lost += 1
            if self._strict:
                raise

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        """Wait for the collector's acknowledgement of all spans."""
        return self._spool.flush(timeout_millis / 1000)

    def shutdown(self) -> None:
        """Forward what can be forwarded at once and leave the rest on disk."""
        self._spool.close()


SERVICES = "services"
"""The folder in a home that only ltrain's own processes write to."""


def open_telemetry(
    service: str,
    *,
    home: Path | None = None,
    endpoint: str | None = None,
    authorization: Authorization | None = None,
    strict: bool = False,
) -> TracerProvider:
    """Give a tracer provider whose spans survive this process and an absent collector.

    Spans go through `home`/services/spool to `endpoint`, a base URL, with `authorization`. No agent
    writes to that folder, so that nothing of an agent's goes out with a service's key. Every span
    is sampled, and has at most LTRAIN_SPAN_LIMIT bytes, without what LTRAIN_REDACT matches.
    `force_flush` waits for the collector, `shutdown` closes the spool. The provider is not made
    global. If `strict`, the `end()` of a span that cannot be written raises OSError.

    Raises:
        BadSetting: when one of the two cannot be read.
    """
    screen = Screen.from_environ()
    folder = (home or settings.HOME.read()) / SERVICES / "spool"
    spool = Spool(folder, endpoint, authorization=authorization)
    resource = Resource.create({SERVICE_NAME: service, SERVICE_INSTANCE_ID: str(uuid4())})
    provider = TracerProvider(
        sampler=sampling.ALWAYS_ON, resource=resource, span_limits=_unlimited()
    )
    provider.add_span_processor(screen)
    provider.add_span_processor(SpoolProcessor(spool, strict=strict))
    return provider


def _unlimited() -> SpanLimits:
    """Give limits that cut nothing, whatever the environment says for agents."""
    none = SpanLimits.UNSET
    return SpanLimits(
        max_attributes=none,
        max_span_attributes=none,
        max_event_attributes=none,
        max_attribute_length=none,
        max_span_attribute_length=none,
    )
