"""strands-agents: the telemetry that is built in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.frameworks import completeness
from tests.frameworks.expected import describe_calls

if TYPE_CHECKING:
    from tests.frameworks.conftest import Run

WARNINGS = {
    "Attempting to instrument while already instrumented",
    "reasoningContent is not supported in multi-turn conversations with the Chat Completions API.",
}
"""strands instruments threads itself, as ltrain does, and sends no reasoning back."""


def test_agents_and_an_agent_as_a_tool(run: Run) -> None:
    result = run("otel144", "strands_agents", "tools", "streamed", "team")
    assert (result.exit_code, set(result.stderr.splitlines()) - WARNINGS) == (0, set())
    assert result.stdout == "Sunny.\nFine.\nOne by one.\nSunny it is.\n"
    assert describe_calls(result) == [
        "guide ok tool_calls 7+5: <Two cities.> + weather(city=Paris) + weather(city=Rome)",
        "  guide ok weather(city=Paris): It is sunny in Paris.",
        "  guide ok weather(city=Rome): It is sunny in Rome.",
        "guide ok tool_calls 7+5: book(city=Bath)",
        "  guide error book(city=Bath): Error: PermissionError - no room in Bath",
        "guide ok stop 7+5: Sunny.",
        "guide ok tool_calls 7+5: weather(city=Bath)",
        "  guide ok weather(city=Bath): It is sunny in Bath.",
        "guide ok stop 7+5: Fine.",
        "streaming_guide ok tool_calls 7+5: weather(city=Rome)",
        "  streaming_guide ok weather(city=Rome): It is sunny in Rome.",
        "streaming_guide ok stop 7+5: One by one.",
        "desk ok tool_calls 7+5: forecast(city=Oslo)",
        "  desk ok forecast(city=Oslo): Sunny.",
        "forecaster ok tool_calls 7+5: weather(city=Oslo)",
        "  forecaster ok weather(city=Oslo): It is sunny in Oslo.",
        "forecaster ok stop 7+5: Sunny.",
        "desk ok stop 7+5: Sunny it is.",
    ]
    outputs = result.states.filter(result.states["variable"].str.ends_with(".output"))
    assert outputs.select("variable", "value").rows() == [
        ("guide.output", '"Sunny."'),
        ("guide.output", '"Fine."'),
        ("streaming_guide.output", '"One by one."'),
        ("forecaster.output", '"Sunny."'),
        ("desk.output", '"Sunny it is."'),
    ]
    completeness.check("strands-agents", "otel144", result)
