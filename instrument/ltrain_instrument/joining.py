"""Joins a tracer provider that the agent sets up: its exporters stay, ours see its spans."""

import logging
from collections.abc import Callable
from typing import Any, TypeGuard

import wrapt
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider
from opentelemetry.trace import TracerProvider as AnyProvider

from ltrain_instrument.census import Census
from ltrain_instrument.screen import Screen

_logger = logging.getLogger("ltrain.distro")


class Passage(SpanProcessor):
    """Hands one provider's spans to another's processors, and leaves those running at its end."""

    def __init__(self, to: SpanProcessor) -> None:
        self._to = to

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Pass it on."""
        self._to.on_start(span, parent_context)

    def on_end(self, span: ReadableSpan) -> None:
        """Pass it on."""
        self._to.on_end(span)

    def shutdown(self) -> None:
        """Do nothing: the other provider lives on, and says farewell later."""

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        """Pass it on."""
        return self._to.force_flush(timeout_millis)


def joinable(provider: AnyProvider) -> TypeGuard[TracerProvider]:
    """Say whether it takes span processors, as the SDK's does and those that wrap it."""
    return callable(getattr(provider, "add_span_processor", None))


def join(provider: TracerProvider, census: Census, screen: Screen) -> None:
    """Add identity, counts and redaction to a provider that was there before."""
    provider.add_span_processor(census)
    if screen.redaction is not None:
        _put_first(provider, screen)


def watch(own: TracerProvider, screen: Screen) -> None:
    """Let the agent set a provider of its own later, and get its spans, too.

    OpenTelemetry takes one provider a process: without this the agent's would be refused with a
    warning, and its exporters would see nothing.
    """

    def set_later(call: Callable[..., None], _: Any, given: tuple[Any, ...], named: Any) -> None:
        theirs = given[0] if given else named.get("tracer_provider")
        if trace._TRACER_PROVIDER is not own or theirs is own or not joinable(theirs):
            call(*given, **named)
            return
        if screen.redaction is not None:
            _put_first(theirs, screen)
        theirs.add_span_processor(Passage(own._active_span_processor))
        trace._TRACER_PROVIDER = theirs

    wrapt.wrap_function_wrapper("opentelemetry.trace", "set_tracer_provider", set_later)


def _put_first(provider: TracerProvider, screen: Screen) -> None:
    """Put it before the exporters that are there; the SDK only adds at the end."""
    try:
        processors = provider._active_span_processor
        processors._span_processors = (screen, *processors._span_processors)
    except AttributeError:
        provider.add_span_processor(screen)
        _logger.warning(
            "ltrain: LTRAIN_REDACT holds only for exporters that are added after ltrain: call "
            "ltrain.configure() before you add yours."
        )
