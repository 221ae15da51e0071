"""Extends a tracer provider that the agent sets up: its exporters stay, ltrain gets its spans."""

import logging
from collections.abc import Callable
from typing import Any, TypeGuard

import wrapt
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider
from opentelemetry.trace import TracerProvider as AnyProvider

from ltrain_instrument import patches
from ltrain_instrument.lifecycle.span_counter import SpanCounter
from ltrain_instrument.privacy import Sanitizer

_logger = logging.getLogger("ltrain.distro")


class ForwardingProcessor(SpanProcessor):
    """Passes the spans of one provider to the processors of another."""

    def __init__(self, target: SpanProcessor) -> None:
        self._target = target

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Pass the span on."""
        self._target.on_start(span, parent_context)

    def on_end(self, span: ReadableSpan) -> None:
        """Pass the span on."""
        self._target.on_end(span)

    def shutdown(self) -> None:
        """Do nothing: the other provider outlives this one."""

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        """Flush the other provider."""
        return self._target.force_flush(timeout_millis)


def accepts_span_processors(provider: AnyProvider) -> TypeGuard[TracerProvider]:
    """Return whether the provider accepts span processors, like the SDK's and its wrappers."""
    return callable(getattr(provider, "add_span_processor", None))


def extend_provider(
    provider: TracerProvider, span_counter: SpanCounter, sanitizer: Sanitizer
) -> None:
    """Add identity, counts and redaction to an existing provider."""
    provider.add_span_processor(span_counter)
    if sanitizer.redaction is not None:
        _insert_first(provider, sanitizer)


def extend_later_providers(provider: TracerProvider, sanitizer: Sanitizer) -> None:
    """Let the agent set a provider of its own later, and receive its spans too.

    OpenTelemetry accepts one provider per process. Otherwise it would refuse the agent's provider
    with a warning, and the agent's exporters would get no spans.
    """

    def set_later(call: Callable[..., None], _: Any, args: tuple[Any, ...], kwargs: Any) -> None:
        new_provider = args[0] if args else kwargs.get("tracer_provider")
        if (
            trace._TRACER_PROVIDER is not provider
            or new_provider is provider
            or not accepts_span_processors(new_provider)
        ):
            call(*args, **kwargs)
            return
        if sanitizer.redaction is not None:
            _insert_first(new_provider, sanitizer)
        new_provider.add_span_processor(ForwardingProcessor(provider._active_span_processor))
        trace._TRACER_PROVIDER = new_provider

    if patches.TRACER_PROVIDER.is_enabled():
        wrapt.wrap_function_wrapper("opentelemetry.trace", "set_tracer_provider", set_later)


def _insert_first(provider: TracerProvider, sanitizer: Sanitizer) -> None:
    """Insert the sanitizer before existing exporters; the SDK can only append processors."""
    try:
        processors = provider._active_span_processor
        processors._span_processors = (sanitizer, *processors._span_processors)
    except AttributeError:
        provider.add_span_processor(sanitizer)
        _logger.warning(
            "ltrain: LTRAIN_REDACT only applies to exporters that are added after ltrain: call "
            "ltrain.configure() before you add yours."
        )
