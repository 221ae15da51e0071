"""Switches on the telemetry that is built into pydantic-ai."""

from ltrain_instrument.privacy import content


def instrument() -> None:
    """Switch telemetry on for all agents, unless the agent has configured it."""
    from pydantic_ai import Agent

    if getattr(Agent, "_instrument_default", False):
        return
    if content.is_content_recorded():
        Agent.instrument_all()
        return
    from pydantic_ai.models.instrumented import InstrumentationSettings

    Agent.instrument_all(InstrumentationSettings(include_content=False))
