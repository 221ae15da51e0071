"""Switches on the telemetry that is built into pydantic-ai and semantic-kernel."""

import os
from importlib import import_module

from ltrain_instrument.privacy import content

SEMANTIC_KERNEL_PREFIX = "SEMANTICKERNEL_EXPERIMENTAL_GENAI_ENABLE_OTEL_DIAGNOSTICS"
"""The beginning of the variables by which the agent's owner decides."""
_TELEMETRY = "semantic_kernel.utils.telemetry"
SEMANTIC_KERNEL_MODULES = (
    f"{_TELEMETRY}.agent_diagnostics.decorators",
    f"{_TELEMETRY}.model_diagnostics.decorators",
    f"{_TELEMETRY}.model_diagnostics.function_tracer",
)
"""Each read the variables when it was imported."""


def instrument_pydantic_ai() -> None:
    """Record all agents of pydantic-ai, unless the agent has configured its telemetry."""
    from pydantic_ai import Agent

    if getattr(Agent, "_instrument_default", False):
        return
    if content.is_content_recorded():
        Agent.instrument_all()
        return
    from pydantic_ai.models.instrumented import InstrumentationSettings

    Agent.instrument_all(InstrumentationSettings(include_content=False))


def instrument_semantic_kernel() -> None:
    """Record agents, models and functions, unless a variable of semantic-kernel decides."""
    if any(name.startswith(SEMANTIC_KERNEL_PREFIX) for name in os.environ):
        return
    for name in SEMANTIC_KERNEL_MODULES:
        settings = import_module(name).MODEL_DIAGNOSTICS_SETTINGS
        settings.enable_otel_diagnostics = True
        settings.enable_otel_diagnostics_sensitive = content.is_content_recorded()
