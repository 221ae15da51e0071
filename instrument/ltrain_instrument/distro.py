"""OpenTelemetry's own entry points: what `opentelemetry-instrument` does with ltrain installed."""

import logging
import os
from collections.abc import Callable
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType
from typing import Any
from uuid import uuid4

import wrapt
from opentelemetry import context, propagate, trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.instrumentation.distro import BaseDistro  # type: ignore[attr-defined]
from opentelemetry.sdk._configuration import _OTelSDKConfigurator
from opentelemetry.sdk.resources import SERVICE_INSTANCE_ID
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter

from ltrain_instrument import bridge, capture, mcp_calls, pydantic_ai, repairs, settings
from ltrain_instrument.capture import Capture
from ltrain_instrument.census import Census
from ltrain_instrument.export import SpoolingExporter
from ltrain_instrument.identity import Identity

DEFAULTS = {
    "OTEL_TRACES_EXPORTER": "otlp",
    "OTEL_LOGS_EXPORTER": "none",
    "OTEL_METRICS_EXPORTER": "none",
    "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
    "OTEL_EXPORTER_OTLP_ENDPOINT": settings.OTLP_ENDPOINT.default,
    "OTEL_PROPAGATORS": "tracecontext,baggage",
    # 128 is the SDK's default, and drops the oldest: 71 flattened messages lose 36
    "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT": "100000",
    "OTEL_BSP_SCHEDULE_DELAY": "500",
    "OTEL_BSP_MAX_QUEUE_SIZE": "16384",
    "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "128",
    # message content, in each instrumentor's own words
    "TRACELOOP_TRACE_CONTENT": "true",
    "TRACELOOP_TELEMETRY": "false",
    "TRACELOOP_METRICS_ENABLED": "false",
    "OTEL_SEMCONV_STABILITY_OPT_IN": "gen_ai_latest_experimental",
    "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "SPAN_ONLY",
}
"""What is set where the environment does not say otherwise."""

TARGETS = {
    "openinference.instrumentation.langchain": ("langchain_core",),
    "opentelemetry.instrumentation.openai": ("openai",),
    "opentelemetry.instrumentation.httpx": ("httpx", "httpx2"),
}
"""Instrumentors that import what they instrument, seconds of it: they wait until the agent does."""

EXTRAS = {"langchain": "langchain_core", "openai": "openai"}
"""Extras of ltrain, which are also names of instrumentors, and the module that wants one."""

_logger = logging.getLogger("ltrain.distro")


class LtrainDistro(BaseDistro):  # type: ignore[misc]
    """Sets defaults, and keeps one instrumentor's failure from the others."""

    def _configure(self, **_: Any) -> None:
        for name, value in DEFAULTS.items():
            os.environ.setdefault(name, value)
        loader = logging.getLogger("opentelemetry.instrumentation.auto_instrumentation._load")
        loader.addFilter(_not_about_configurators)
        _name_missing()
        repairs.install()
        mcp_calls.install()
        wrapt.when_imported("pydantic_ai")(lambda _: pydantic_ai.instrument())

    def load_instrumentor(self, entry_point: EntryPoint, **options: Any) -> None:
        """Instrument now, or when the agent imports the library; a failure is one warning."""
        load = partial(self._load, entry_point, options)
        targets = TARGETS.get(entry_point.module)
        if targets is None:
            load()
            return
        # One module's instrumentors load together: httpx's imports both libraries it is for
        _waiting.setdefault(entry_point.module, []).append(load)
        for target in targets:
            wrapt.when_imported(target)(partial(_load_waiting, entry_point.module))

    def _load(self, entry_point: EntryPoint, options: dict[str, Any]) -> None:
        try:
            super().load_instrumentor(entry_point, **options)
        except Exception as error:  # foreign code: what it raises must not stop the agent
            _logger.warning(
                "ltrain: instrumentor '%s' (%s) failed and is left out: %r",
                entry_point.name,
                entry_point.value,
                error,
            )


_waiting: dict[str, list[Callable[[], None]]] = {}


def _load_waiting(instrumentor: str, module: ModuleType) -> None:
    for load in _waiting.pop(instrumentor, ()):
        load()


class LtrainConfigurator(_OTelSDKConfigurator):
    """Builds the SDK from its environment, with identity, counts and an exporter that keeps."""

    def _configure(self, **options: Any) -> None:
        census = Census(Identity.from_environ())
        own = {SERVICE_INSTANCE_ID: str(uuid4())}
        keeping: list[SpanExporter] = []
        super()._configure(  # type: ignore[no-untyped-call]
            resource_attributes={**options.pop("resource_attributes", {}), **own},
            span_processors=[census],
            export_span_processor=partial(_batches, keeping),
            **options,
        )
        provider = trace.get_tracer_provider()
        if isinstance(provider, TracerProvider):
            Capture(provider, census, keeping).install()
        _join_parent()


def configure() -> None:
    """Instrument this process from code, as `opentelemetry-instrument` does from outside.

    Where OpenTelemetry is set up already its exporters stay, and spans gain identity and counts.
    Call it before the agent's libraries are used; a second call does nothing.
    """
    if capture.current() is not None:
        return
    provider = trace.get_tracer_provider()
    if isinstance(provider, TracerProvider):
        census = Census(Identity.from_environ())
        provider.add_span_processor(census)
        Capture(provider, census).install()
        bridge.install()
        return
    from opentelemetry.instrumentation.auto_instrumentation import initialize

    import ltrain_instrument.environment  # noqa: F401  sets which distro is meant

    initialize()


def _batches(keeping: list[SpanExporter], exporter: SpanExporter) -> SpanProcessor:
    """Batch an exporter's spans; the stock OTLP/HTTP one is replaced by ours, which keeps them."""
    if isinstance(exporter, OTLPSpanExporter):
        exporter = SpoolingExporter(settings.HOME.read().absolute() / "spool")
        keeping.append(exporter)
    return BatchSpanProcessor(exporter)


def _join_parent() -> None:
    """Continue the trace and the baggage that the environment hands to this process."""
    names = ("TRACEPARENT", "TRACESTATE", "BAGGAGE")
    carrier = {name.lower(): os.environ[name] for name in names if os.environ.get(name)}
    if carrier:
        context.attach(propagate.extract(carrier))


def _not_about_configurators(record: logging.LogRecord) -> bool:
    """Drop the loader's warning that another configurator was not loaded: it is meant so."""
    return "not loaded because" not in record.getMessage()


def _name_missing() -> None:
    """Warn, once the agent imports a library, that its instrumentor is not installed."""
    installed = {entry.name for entry in entry_points(group="opentelemetry_instrumentor")}
    for extra, module in EXTRAS.items():
        if extra not in installed:
            wrapt.when_imported(module)(partial(_missing, extra))


def _missing(extra: str, module: ModuleType) -> None:
    _logger.warning(
        "ltrain: %s is used, but its instrumentor is not installed: its calls leave no spans. "
        "pip install 'ltrain[%s]'",
        extra,
        extra,
    )
