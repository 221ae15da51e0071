"""OpenTelemetry's entry points: what `opentelemetry-instrument` runs when ltrain is installed."""

import logging
import os
import sys
from functools import partial
from importlib.metadata import EntryPoint
from typing import Any
from uuid import uuid4

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.instrumentation.distro import BaseDistro  # type: ignore[attr-defined]
from opentelemetry.instrumentation.threading import ThreadingInstrumentor
from opentelemetry.sdk._configuration import _OTelSDKConfigurator
from opentelemetry.sdk.resources import (
    PROCESS_COMMAND,
    PROCESS_EXECUTABLE_PATH,
    SERVICE_INSTANCE_ID,
)
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter

from ltrain_instrument import addresses, patches, settings
from ltrain_instrument.conversations import ConversationProcessor
from ltrain_instrument.delivery import SpoolSpanProcessor
from ltrain_instrument.errors import BadSetting
from ltrain_instrument.frameworks import langchain_bridge
from ltrain_instrument.identity import Identity
from ltrain_instrument.instrumentors import InstrumentorLoader, choice, find_function
from ltrain_instrument.lifecycle import (
    Capture,
    SpanCounter,
    capture,
    existing_provider,
    open_process_span,
    subprocesses,
)
from ltrain_instrument.privacy import Sanitizer, content
from ltrain_instrument.setting_values import JoinCalls
from ltrain_instrument.tokens import clients

SAMPLER = "OTEL_TRACES_SAMPLER"

DEFAULTS = {
    "OTEL_TRACES_EXPORTER": "otlp",
    "OTEL_LOGS_EXPORTER": "none",
    "OTEL_METRICS_EXPORTER": "none",
    "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
    "OTEL_PROPAGATORS": "tracecontext,baggage",
    # The SDK's default follows the caller: an unsampled request would record no rollout or reward
    SAMPLER: "always_on",
    # The SDK's default of 128 drops the oldest: of 71 flattened messages it loses 36
    "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT": "100000",
    "OTEL_BSP_SCHEDULE_DELAY": "500",
    "OTEL_BSP_MAX_QUEUE_SIZE": "16384",
    "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "128",
    # message content, under the name that each instrumentor has for it
    "TRACELOOP_TRACE_CONTENT": "true",
    "TRACELOOP_TELEMETRY": "false",
    "TRACELOOP_METRICS_ENABLED": "false",
    "OTEL_SEMCONV_STABILITY_OPT_IN": "gen_ai_latest_experimental",
    content.SWITCH: "SPAN_ONLY",
}
"""Values of variables that the environment does not set."""

_logger = logging.getLogger("ltrain.distro")
_loader_logger = logging.getLogger("opentelemetry.instrumentation.auto_instrumentation._load")


class LtrainDistro(BaseDistro):  # type: ignore[misc]
    """Sets defaults, and loads one instrumentor per library; a failure affects only that one."""

    def _configure(self, **_: Any) -> None:
        self._loader: InstrumentorLoader | None = None
        if patches.LOG_FILTERS.is_enabled():
            _loader_logger.addFilter(_is_relevant)
        if patches.is_sdk_disabled():
            return
        _warn_of_unknown_patches()
        content.hide_content_elsewhere()
        if not os.environ.get(SAMPLER, "").strip():
            os.environ.pop(SAMPLER, None)  # to the SDK, an empty value means its own default
        for name, value in DEFAULTS.items():
            os.environ.setdefault(name, value)
        _set_found_endpoint()
        _disable_log_export()
        providers, errors = choice.requested_providers()
        for error in errors:
            _logger.warning("ltrain: %s", error)
        choices = choice.choose_instrumentors(providers, choice.disabled_instrumentations())
        for each in choices.values():
            if (patch := each.library.patch) and patch.is_enabled() and not each.off:
                find_function(each.library.install_patch)()
        self._loader = InstrumentorLoader(choices)
        self._loader.start()
        for entry in choice.entry_points_to_load(choices):
            self.load_instrumentor(entry, skip_dep_check=True)

    def load_instrumentor(self, entry_point: EntryPoint, **options: Any) -> None:
        """Load the library's chosen instrumentor when the agent imports it; skip the others."""
        if self._loader is not None:
            load = partial(super().load_instrumentor, entry_point, **options)
            self._loader.add(entry_point, load)


class LtrainConfigurator(_OTelSDKConfigurator):
    """Builds the SDK from its environment, with identity, counts and a persistent exporter."""

    attempted = False
    """Whether this process was set up or the attempt failed; either is reported once."""

    def _configure(self, **options: Any) -> None:
        LtrainConfigurator.attempted = True
        if patches.is_sdk_disabled():
            return
        sanitizer = Sanitizer.for_agent()
        span_counter = SpanCounter(Identity.from_environ())
        join_calls = _join_calls()
        conversations = [ConversationProcessor()] if join_calls is JoinCalls.CONTENT else []
        process = {SERVICE_INSTANCE_ID: str(uuid4()), **_program()}
        spool_processors: list[SpoolSpanProcessor] = []
        has_config_file = bool(os.environ.get("OTEL_CONFIG_FILE"))
        if not has_config_file:
            options |= {
                "resource_attributes": {**options.get("resource_attributes", {}), **process},
                "span_processors": [span_counter, *conversations, sanitizer],
                "export_span_processor": partial(_create_export_processor, spool_processors),
            }
        try:
            super()._configure(**({} if has_config_file else options))  # type: ignore[no-untyped-call]
        except Exception as error:  # an invalid variable of OpenTelemetry's must not stop the agent
            _logger.warning(
                "ltrain: no span is recorded, OpenTelemetry cannot be set up: %s", error
            )
            return
        provider = trace.get_tracer_provider()
        if isinstance(provider, TracerProvider):
            if has_config_file:  # the file defines processors and exporters and ignores options
                existing_provider.extend_provider(provider, span_counter, sanitizer)
            Capture(provider, span_counter, spool_processors).install()
            subprocesses.patch_subprocess()
            existing_provider.extend_later_providers(provider, sanitizer)
        subprocesses.attach_parent_context()
        if join_calls is JoinCalls.PROCESS:
            open_process_span()


def configure() -> None:
    """Instrument this process from code, as `opentelemetry-instrument` does from outside.

    If OpenTelemetry is already set up, its exporters stay, and spans get identity and counts. Call
    `configure` before the agent's libraries are used; a second call does nothing.
    """
    if capture.current_capture() is not None or LtrainConfigurator.attempted:
        return
    if patches.is_sdk_disabled():
        return
    provider = trace.get_tracer_provider()
    if existing_provider.accepts_span_processors(provider):
        _warn_of_unknown_patches()
        span_counter = SpanCounter(Identity.from_environ())
        existing_provider.extend_provider(provider, span_counter, Sanitizer.for_agent())
        Capture(provider, span_counter).install()
        subprocesses.patch_subprocess()
        _instrument_threads()
        langchain_bridge.install()
        clients.install()
        return
    if not isinstance(provider, trace.ProxyTracerProvider):
        kind = type(provider)
        _logger.warning(
            "ltrain: no span is recorded: the tracer provider set up here, %s.%s, accepts no span "
            "processors. Use OpenTelemetry's TracerProvider, or call ltrain.configure() first.",
            kind.__module__,
            kind.__qualname__,
        )
        return
    from opentelemetry.instrumentation.auto_instrumentation import initialize

    import ltrain_instrument.environment  # noqa: F401  selects ltrain's distro

    initialize()


def _warn_of_unknown_patches() -> None:
    for error in choice.unknown_patch_names():
        _logger.warning("ltrain: %s", error)


def _instrument_threads() -> None:
    """Pass the context to threads, unless a setting switches the instrumentation off."""
    instrumentor = ThreadingInstrumentor()
    is_off = choice.is_switched_off("threading")
    if not (is_off or instrumentor.is_instrumented_by_opentelemetry):
        instrumentor.instrument()


def _create_export_processor(
    spool_processors: list[SpoolSpanProcessor], exporter: SpanExporter
) -> SpanProcessor:
    """Return an exporter's processor; a spool on disk replaces the stock OTLP/HTTP exporter."""
    if not isinstance(exporter, OTLPSpanExporter):
        return BatchSpanProcessor(exporter)
    folder = settings.HOME.read().absolute() / settings.SPOOL
    spool_processors.append(SpoolSpanProcessor.for_agent(folder))
    return spool_processors[-1]


def _set_found_endpoint() -> None:
    """Set the endpoint to that of the running `ltrain up` of LTRAIN_HOME, for all exporters."""
    is_grpc = os.environ["OTEL_EXPORTER_OTLP_PROTOCOL"].strip() == "grpc"
    name = addresses.GRPC if is_grpc else addresses.OTLP
    if found := addresses.find_address(settings.HOME.read(), name):
        os.environ.setdefault(settings.OTLP_ENDPOINT.name, found)


def _join_calls() -> JoinCalls:
    """Return how calls become conversations."""
    try:
        return settings.CONVERSATIONS.read()
    except BadSetting as error:  # an invalid setting must not cost the agent its spans
        _logger.warning("ltrain: %s", error)
        return JoinCalls.OFF


def _program() -> dict[str, str]:
    """Return the resource attributes with the paths of this Python and of the script that it runs.

    The arguments of the script are left out, because they may have keys.
    """
    program = {PROCESS_EXECUTABLE_PATH: sys.executable} if sys.executable else {}
    if getattr(sys, "argv", None) and sys.argv[0].endswith(".py"):
        program[PROCESS_COMMAND] = os.path.abspath(sys.argv[0])
    return program


def _disable_log_export() -> None:
    """Disable the export of log records if values are redacted: only spans are redacted."""
    variable = "OTEL_LOGS_EXPORTER"
    if os.environ.get(settings.REDACT.name) and os.environ[variable].strip().lower() != "none":
        _logger.warning(
            "ltrain: %s=%s is treated as none, because %s does not apply to log records.",
            variable,
            os.environ[variable],
            settings.REDACT.name,
        )
        os.environ[variable] = "none"


def _is_relevant(record: logging.LogRecord) -> bool:
    """Filter out the loader's messages on skips that are intended or that ltrain reports itself.

    These are a second configurator and an instrumentor that does not support the library's version.
    """
    message = record.getMessage()
    if "nothing can be instrumented" in message:
        return message.partition(" ")[0] not in choice.known_entry_point_names()
    return "not loaded because" not in message
