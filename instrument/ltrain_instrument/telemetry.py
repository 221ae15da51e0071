"""Tracing for ltrain's own processes: every span is on disk when it has ended."""

from pathlib import Path
from uuid import uuid4

from opentelemetry.sdk.resources import SERVICE_INSTANCE_ID, SERVICE_NAME, Resource
from opentelemetry.sdk.trace import SpanLimits, TracerProvider, sampling

from ltrain_instrument import settings
from ltrain_instrument.delivery import Authorization
from ltrain_instrument.export import SpoolProcessor
from ltrain_instrument.screen import Screen
from ltrain_instrument.spool import Spool


def open_telemetry(
    service: str,
    *,
    home: Path | None = None,
    endpoint: str | None = None,
    authorization: Authorization | None = None,
    strict: bool = False,
) -> TracerProvider:
    """Return a tracer provider whose spans survive this process and an absent collector.

    Spans go through `home`/services/spool to `endpoint`, a base URL, with `authorization`. No agent
    writes to that folder, so that nothing of an agent's goes out with a service's key. Every span
    is sampled, and has at most LTRAIN_SPAN_LIMIT bytes, without what LTRAIN_REDACT matches.
    `force_flush` waits for the collector, `shutdown` closes the spool. The provider is not made
    global. If `strict`, the `end()` of a span that cannot be written raises OSError.

    Raises:
        BadSetting: when one of the two cannot be read.
    """
    screen = Screen.from_environ()
    folder = (home or settings.HOME.read()) / settings.SERVICES / "spool"
    spool = Spool(folder, endpoint, authorization=authorization)
    resource = Resource.create({SERVICE_NAME: service, SERVICE_INSTANCE_ID: str(uuid4())})
    provider = TracerProvider(
        sampler=sampling.ALWAYS_ON, resource=resource, span_limits=_unlimited()
    )
    provider.add_span_processor(screen)
    provider.add_span_processor(SpoolProcessor(spool, strict=strict))
    return provider


def _unlimited() -> SpanLimits:
    """Return limits that cut nothing, whatever the environment says for agents."""
    none = SpanLimits.UNSET
    return SpanLimits(
        max_attributes=none,
        max_span_attributes=none,
        max_event_attributes=none,
        max_attribute_length=none,
        max_span_attribute_length=none,
    )
