"""CrewAI: a crew whose agents delegate, and a flow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.frameworks import completeness
from tests.frameworks.expected import describe_calls, failed_texts

if TYPE_CHECKING:
    from tests.frameworks.conftest import Run

NO_TELEMETRY = {"CREWAI_DISABLE_TELEMETRY": "true", "CREWAI_TRACING_ENABLED": "false"}
"""Switches off CrewAI's own telemetry to its vendor."""
TOKEN_COUNT_WARNING = "Using an approximate input token count for model 'fake'"
"""A warning of CrewAI's that also appears without ltrain."""
DELEGATED = "delegate_work_to_coworker(task=Oslo, context=Tomorrow, coworker=forecaster)"


def test_crews_and_a_flow(run: Run) -> None:
    result = run("openai2", "crewai_crew", "crew", "flow", "awaited", **NO_TELEMETRY)
    lines = [line for line in result.stdout.splitlines() if line and line[0] not in "╭│╰"]
    assert (result.exit_code, lines) == (
        0,
        ["It is sunny everywhere.", "Snow.", "Still sunny.", "Rain."],
    )
    assert [line for line in result.stderr.splitlines() if TOKEN_COUNT_WARNING not in line] == []
    assert describe_calls(result) == [
        "guide ok tool_calls 7+5: <Two cities.> + weather(city=Paris) + weather(city=Rome)",
        "  guide ok weather(city=Paris): It is sunny in Paris.",
        "  guide ok weather(city=Rome): It is sunny in Rome.",
        "guide ok tool_calls 7+5: book(city=Bath)",
        "  guide error book(city=Bath): PermissionError",
        f"guide ok tool_calls 7+5: {DELEGATED}",
        f"  guide ok {DELEGATED}: Snow in Oslo.",
        "forecaster ok tool_calls 7+5: weather(city=Oslo)",
        "  forecaster ok weather(city=Oslo): It is sunny in Oslo.",
        "forecaster ok stop 7+5: Snow in Oslo.",
        "guide ok stop 7+5: Sunny.",
        "forecaster ok stop 7+5: It is sunny everywhere.",
        "forecaster ok tool_calls 7+5: weather(city=Oslo)",
        "  forecaster ok weather(city=Oslo): It is sunny in Oslo.",
        "forecaster ok stop 7+5: Snow.",
        "guide ok tool_calls 7+5: weather(city=Paris) + weather(city=Rome)",
        "  guide ok weather(city=Paris): It is sunny in Paris.",
        "  guide ok weather(city=Rome): It is sunny in Rome.",
        "guide ok stop 7+5: Still sunny.",
        "forecaster ok tool_calls 7+5: weather(city=Bath)",
        "  forecaster ok weather(city=Bath): It is sunny in Bath.",
        "forecaster ok stop 7+5: Rain.",
    ]
    states = result.states.select("variable", "value").rows()
    assert [(name, value) for name, value in states if name.endswith((".output", "answer"))] == [
        ("forecaster.output", '"Snow in Oslo."'),
        ("guide.output", '"Sunny."'),
        ("forecaster.output", '"It is sunny everywhere."'),
        ("forecaster.output", '"Snow."'),
        ("guide.output", '"Still sunny."'),
        ("forecaster.output", '"Rain."'),
        ("answer", '"Rain."'),
    ]
    nodes = [call["name"] for call in result.calls_of_kind("node")]
    assert nodes == ["Crew", "Flow", "Flow.choose", "Flow.look", "Crew"]
    assert result.executions["complete"].to_list() == [True]
    assert failed_texts(result, "crewai") == {"Error executing tool: no room in Bath"}
    completeness.check("crewai", "openai2", result)
