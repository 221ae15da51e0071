"""pydantic-ai records itself, but only when it is told to."""

from ltrain_instrument import content


def instrument() -> None:
    """Switch its telemetry on for all agents; what the agent says of it holds."""
    from pydantic_ai import Agent
    from pydantic_ai.models.instrumented import InstrumentationSettings

    if not getattr(Agent, "_instrument_default", False):
        bare = InstrumentationSettings(include_content=False)
        Agent.instrument_all(True if content.recorded() else bare)
