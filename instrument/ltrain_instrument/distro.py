"""OpenTelemetry's own entry points: what `opentelemetry-instrument` does with ltrain installed."""

import logging
import os
from functools import partial
from importlib.metadata import EntryPoint
from typing import Any
from uuid import uuid4

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.instrumentation.distro import BaseDistro  # type: ignore[attr-defined]
from opentelemetry.instrumentation.threading import ThreadingInstrumentor
from opentelemetry.sdk._configuration import _OTelSDKConfigurator
from opentelemetry.sdk.resources import SERVICE_INSTANCE_ID
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter

from ltrain_instrument import (
    autogen,
    bridge,
    capture,
    choice,
    content,
    crewai,
    handover,
    httpx_twins,
    joining,
    llama_index,
    mcp_calls,
    settings,
    tokens,
)
from ltrain_instrument.capture import Capture
from ltrain_instrument.census import Census
from ltrain_instrument.export import SpoolProcessor
from ltrain_instrument.identity import Identity
from ltrain_instrument.loading import Loader
from ltrain_instrument.screen import Screen

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

ADDITIONS = {
    "crewai": crewai.install,
    "llama-index": llama_index.install,
    "mcp": mcp_calls.install,
}
"""What is recorded beside a library's instrumentor, unless the library is switched off."""

_logger = logging.getLogger("ltrain.distro")


class LtrainDistro(BaseDistro):  # type: ignore[misc]
    """Sets defaults, and loads one instrumentor a library, each failure on its own."""

    def _configure(self, **_: Any) -> None:
        self._loader: Loader | None = None
        loader = logging.getLogger("opentelemetry.instrumentation.auto_instrumentation._load")
        loader.addFilter(_not_meant)
        if switched_off():
            return
        content.hand_on()
        for name, value in DEFAULTS.items():
            os.environ.setdefault(name, value)
        _keep_logs_in()
        makers, faults = choice.wanted()
        for fault in faults:
            _logger.warning("ltrain: %s", fault)
        chosen = choice.choices(makers, choice.disabled())
        autogen.install()
        for name, install in ADDITIONS.items():
            if not chosen[name].off:
                install()
        self._loader = Loader(chosen)
        self._loader.start()
        for entry in choice.unoffered(chosen):
            self.load_instrumentor(entry, skip_dep_check=True)

    def load_instrumentor(self, entry_point: EntryPoint, **options: Any) -> None:
        """Instrument now, when the agent imports the library, or never: one serves a library."""
        if self._loader is not None:
            load = partial(super().load_instrumentor, entry_point, **options)
            if entry_point.module == httpx_twins.HOME:
                load = partial(httpx_twins.load, load)
            self._loader.add(entry_point, load)


class LtrainConfigurator(_OTelSDKConfigurator):
    """Builds the SDK from its environment, with identity, counts and an exporter that keeps."""

    tried = False
    """Whether this process was set up, or could not be: either is said once."""

    def _configure(self, **options: Any) -> None:
        LtrainConfigurator.tried = True
        if switched_off():
            return
        screen = Screen.for_agent()
        census = Census(Identity.from_environ())
        own = {SERVICE_INSTANCE_ID: str(uuid4())}
        keeping: list[SpoolProcessor] = []
        declared = bool(os.environ.get("OTEL_CONFIG_FILE"))
        if not declared:
            options |= {
                "resource_attributes": {**options.get("resource_attributes", {}), **own},
                "span_processors": [census, screen],
                "export_span_processor": partial(_exporting, keeping),
            }
        try:
            super()._configure(**({} if declared else options))  # type: ignore[no-untyped-call]
        except Exception as error:  # OpenTelemetry's own variables, misspelt: the agent runs on
            _logger.warning(
                "ltrain: no span is recorded, OpenTelemetry cannot be set up: %s", error
            )
            return
        provider = trace.get_tracer_provider()
        if isinstance(provider, TracerProvider):
            if declared:  # a file sets up processors and exporters of its own, whatever is asked
                joining.join(provider, census, screen)
            Capture(provider, census, keeping).install()
            handover.install()
            joining.watch(provider, screen)
        handover.take()


def switched_off() -> bool:
    """Say whether OTEL_SDK_DISABLED turns everything off."""
    return os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"


def configure() -> None:
    """Instrument this process from code, as `opentelemetry-instrument` does from outside.

    Where OpenTelemetry is set up already its exporters stay, and spans gain identity and counts.
    Call it before the agent's libraries are used; a second call does nothing.
    """
    if capture.current() is not None or LtrainConfigurator.tried or switched_off():
        return
    provider = trace.get_tracer_provider()
    if joining.joinable(provider):
        census = Census(Identity.from_environ())
        joining.join(provider, census, Screen.for_agent())
        Capture(provider, census).install()
        handover.install()
        if not ThreadingInstrumentor().is_instrumented_by_opentelemetry:
            ThreadingInstrumentor().instrument()
        bridge.install()
        tokens.install()
        return
    if not isinstance(provider, trace.ProxyTracerProvider):
        kind = type(provider)
        _logger.warning(
            "ltrain: no span is recorded: the tracer provider set up here, %s.%s, takes no span "
            "processors. Use OpenTelemetry's TracerProvider, or call ltrain.configure() first.",
            kind.__module__,
            kind.__qualname__,
        )
        return
    from opentelemetry.instrumentation.auto_instrumentation import initialize

    import ltrain_instrument.environment  # noqa: F401  sets which distro is meant

    initialize()


def _exporting(keeping: list[SpoolProcessor], exporter: SpanExporter) -> SpanProcessor:
    """Return what exports; the stock OTLP/HTTP exporter is replaced by a spool on disk."""
    if not isinstance(exporter, OTLPSpanExporter):
        return BatchSpanProcessor(exporter)
    keeping.append(SpoolProcessor.for_agent(settings.HOME.read().absolute() / "spool"))
    return keeping[-1]


def _keep_logs_in() -> None:
    """Switch log records off where values are redacted: only spans are."""
    variable = "OTEL_LOGS_EXPORTER"
    if os.environ.get(settings.REDACT.name) and os.environ[variable].strip().lower() != "none":
        _logger.warning(
            "ltrain: %s=%s is taken as none: %s does not reach log records.",
            variable,
            os.environ[variable],
            settings.REDACT.name,
        )
        os.environ[variable] = "none"


def _not_meant(record: logging.LogRecord) -> bool:
    """Drop the loader's words on what is meant so, or what ltrain says itself when it matters.

    That another configurator was not loaded; that an instrumentor does not fit the library.
    """
    said = record.getMessage()
    if "nothing can be instrumented" in said:
        return said.partition(" ")[0] not in choice.entry_names()
    return "not loaded because" not in said
