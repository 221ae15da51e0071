"""Tracing for ltrain's own processes: every span is on disk when it has ended."""

from pathlib import Path
from uuid import uuid4

from opentelemetry.sdk.resources import SERVICE_INSTANCE_ID, SERVICE_NAME, Resource
from opentelemetry.sdk.trace import SpanLimits, TracerProvider, sampling

from ltrain_instrument import settings
from ltrain_instrument.delivery.otlp_client import Authorization
from ltrain_instrument.delivery.span_processor import SpoolSpanProcessor
from ltrain_instrument.delivery.spool import Spool
from ltrain_instrument.privacy import Sanitizer


def create_tracer_provider(
    service: str,
    *,
    home: Path | None = None,
    endpoint: str | None = None,
    authorization: Authorization | None = None,
    strict: bool = False,
) -> TracerProvider:
    """Return a tracer provider whose spans survive this process and an unreachable collector.

    Spans go through `home`/services/spool to `endpoint`, a base URL, with `authorization`. Agents
    do not write to that folder, so their spans are never sent with a service's key. Every span is
    sampled. It holds at most LTRAIN_SPAN_LIMIT bytes, without text that matches LTRAIN_REDACT.
    `force_flush` waits for the collector, `shutdown` closes the spool. The provider is not set
    globally. If `strict`, `end()` of a span that cannot be written raises OSError.

    Raises:
        BadSetting: when one of the two settings is invalid.
    """
    sanitizer = Sanitizer.from_environ()
    folder = (home or settings.HOME.read()) / settings.SERVICES / settings.SPOOL
    spool = Spool(folder, endpoint, authorization=authorization)
    resource = Resource.create({SERVICE_NAME: service, SERVICE_INSTANCE_ID: str(uuid4())})
    provider = TracerProvider(
        sampler=sampling.ALWAYS_ON, resource=resource, span_limits=_unlimited()
    )
    provider.add_span_processor(sanitizer)
    provider.add_span_processor(SpoolSpanProcessor(spool, strict=strict))
    return provider


def _unlimited() -> SpanLimits:
    """Return limits that cut nothing; those of the environment are for agents."""
    unset = SpanLimits.UNSET
    return SpanLimits(
        max_attributes=unset,
        max_span_attributes=unset,
        max_event_attributes=unset,
        max_attribute_length=unset,
        max_span_attribute_length=unset,
    )
