"""pydantic-ai records itself, but only when it is told to."""

from ltrain_instrument import content


def instrument() -> None:
    """Switch its telemetry on for all agents; what the agent says of it holds."""
    from pydantic_ai import Agent

    if getattr(Agent, "_instrument_default", False):
        return
    if content.recorded():
        Agent.instrument_all()
        return
    from pydantic_ai.models.instrumented import InstrumentationSettings

    Agent.instrument_all(InstrumentationSettings(include_content=False))
