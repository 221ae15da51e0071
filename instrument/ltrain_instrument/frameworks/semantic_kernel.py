"""Switches on the telemetry that is built into semantic-kernel."""

import os
from importlib import import_module

from ltrain_instrument.privacy import content

PREFIX = "SEMANTICKERNEL_EXPERIMENTAL_GENAI_ENABLE_OTEL_DIAGNOSTICS"
"""The beginning of the variables by which the agent's owner decides."""
TELEMETRY = "semantic_kernel.utils.telemetry"
MODULES = (
    f"{TELEMETRY}.agent_diagnostics.decorators",
    f"{TELEMETRY}.model_diagnostics.decorators",
    f"{TELEMETRY}.model_diagnostics.function_tracer",
)
"""Each read the variables when it was imported."""


def instrument() -> None:
    """Record agents, models and functions, unless a variable of semantic-kernel decides."""
    if any(name.startswith(PREFIX) for name in os.environ):
        return
    for name in MODULES:
        settings = import_module(name).MODEL_DIAGNOSTICS_SETTINGS
        settings.enable_otel_diagnostics = True
        settings.enable_otel_diagnostics_sensitive = content.is_content_recorded()
