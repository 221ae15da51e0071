"""AutoGen: several traces per rollout, and its own spans besides OpenInference's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.frameworks import completeness
from tests.frameworks.expected import describe_calls

if TYPE_CHECKING:
    from tests.frameworks.conftest import Run


def test_assistant(run: Run) -> None:
    result = run("frameworks", "autogen_team", "tools", "streamed")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == "Sunny.\nNo.\nOne by one.\n"
    assert describe_calls(result) == [
        "guide ok tool_calls 7+5: <Two cities.> + weather(city=Paris) + weather(city=Rome)",
        "  guide ok weather(city=Paris): It is sunny in Paris.",
        "  guide ok weather(city=Rome): It is sunny in Rome.",
        "guide ok stop 7+5: Sunny.",
        "guide ok tool_calls 7+5: book(city=Bath) + nowhere()",
        "  guide error book(city=Bath): no room in Bath",
        "  guide error nowhere(): Error: tool 'nowhere' not found in any workbench",
        "guide ok stop 7+5: No.",
        "streaming_guide ok tool_calls 7+5: weather(city=Rome)",
        "  streaming_guide ok weather(city=Rome): It is sunny in Rome.",
        "streaming_guide ok stop 7+5: One by one.",
    ]
    assert [call["agent"] for call in result.calls_of_kind("agent")] == [
        "guide",
        "guide",
        "streaming_guide",
    ]
    completeness.check("autogen-agentchat", "frameworks", result)


def test_swarm(run: Run) -> None:
    result = run("frameworks", "autogen_team", "swarm")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "Sunny. Good day.\n", "")
    assert describe_calls(result) == [
        "desk ok tool_calls 7+5: forward()",
        "  desk ok forward(): It is yours. [[weather(city=Oslo); Sunny. Good day.]]",
        "forecaster ok tool_calls 7+5: weather(city=Oslo)",
        "  forecaster ok weather(city=Oslo): It is sunny in Oslo.",
        "forecaster ok stop 7+5: Sunny. Good day.",
    ]
    handoff_message = '"It is yours. [[weather(city=Oslo); Sunny. Good day.]]"'
    assert result.states.select("t", "variable", "value").rows() == [
        (0, "input", '"Tomorrow? [[forward()]]"'),
        (1, "desk.input", '"Tomorrow? [[forward()]]"'),
        (3, "tool.forward.arguments", "{}"),
        (4, "tool.forward.result", handoff_message),
        (4, "forecaster.input", handoff_message),
        (6, "tool.weather.arguments", '{"city":"Oslo"}'),
        (7, "tool.weather.result", '"It is sunny in Oslo."'),
        (8, "forecaster.output", '"Sunny. Good day."'),
        (8, "answer", '"Sunny. Good day."'),
    ]
    assert result.executions["complete"].to_list() == [True]
    assert result.executions["traces"].to_list() == [3]  # one trace per created agent
