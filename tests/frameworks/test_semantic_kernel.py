"""semantic-kernel: the telemetry that is built in, which ltrain switches on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.frameworks import completeness
from tests.frameworks.expected import describe_calls

if TYPE_CHECKING:
    from tests.frameworks.conftest import Run


def test_agents_and_an_agent_as_a_plugin(run: Run) -> None:
    result = run("otel144", "semantic_kernel_agents", "tools", "streamed", "team")
    assert result.exit_code == 0
    assert result.stderr.startswith("Function failed. Error: no room in Bath\n")
    assert result.stdout == "Sunny.\nOne by one.\nSunny it is.\n"
    calls = "Places-weather(city=Paris) + Places-weather(city=Rome)"
    assert describe_calls(result) == [
        f"guide ok tool_calls 7+5: <Two cities.> + {calls}",
        "  guide ok Places-weather(city=Paris): It is sunny in Paris.",
        "  guide ok Places-weather(city=Rome): It is sunny in Rome.",
        "guide ok tool_calls 7+5: Places-book(city=Bath)",
        "  guide error Places-book(city=Bath): PermissionError",
        "guide ok stop 7+5: Sunny.",
        "streaming_guide ok tool_calls 7+5: Places-weather(city=Rome)",
        "  streaming_guide ok Places-weather(city=Rome): It is sunny in Rome.",
        "streaming_guide ok stop 7+5: One by one.",
        "desk ok tool_calls 7+5: forecaster-forecaster(messages=Oslo)",
        "  desk ok forecaster-forecaster(messages=Oslo): Sunny.",
        "forecaster ok tool_calls 7+5: Places-weather(city=Oslo)",
        # semantic-kernel passes the arguments of an agent on to its functions
        "  forecaster ok Places-weather(instructions_override=None, city=Oslo): "
        "It is sunny in Oslo.",
        "forecaster ok stop 7+5: Sunny.",
        "desk ok stop 7+5: Sunny it is.",
    ]
    completeness.check("semantic-kernel", "otel144", result)
