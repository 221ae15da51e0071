"""AutoGen: several traces a rollout, and its own spans beside OpenInference's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.frameworks import completeness
from tests.frameworks.told import told

if TYPE_CHECKING:
    from tests.frameworks.conftest import Run


def test_assistant(run: Run) -> None:
    ran = run("frameworks", "autogen_team", "tools", "streamed")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == "Sunny.\nNo.\nOne by one.\n"
    assert told(ran) == [
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
    assert [call["agent"] for call in ran.of("agent")] == ["guide", "guide", "streaming_guide"]
    completeness.check("autogen-agentchat", "frameworks", ran)


def test_swarm(run: Run) -> None:
    ran = run("frameworks", "autogen_team", "swarm")
    assert (ran.code, ran.out, ran.err) == (0, "Sunny. Good day.\n", "")
    assert told(ran) == [
        "desk ok tool_calls 7+5: forward()",
        "  desk ok forward(): It is yours. [[weather(city=Oslo); Sunny. Good day.]]",
        "forecaster ok tool_calls 7+5: weather(city=Oslo)",
        "  forecaster ok weather(city=Oslo): It is sunny in Oslo.",
        "forecaster ok stop 7+5: Sunny. Good day.",
    ]
    known = '"It is yours. [[weather(city=Oslo); Sunny. Good day.]]"'
    assert ran.states.select("t", "variable", "value").rows() == [
        (0, "input", '"Tomorrow? [[forward()]]"'),
        (1, "desk.input", '"Tomorrow? [[forward()]]"'),
        (3, "tool.forward.arguments", "{}"),
        (4, "tool.forward.result", known),
        (4, "forecaster.input", known),
        (6, "tool.weather.arguments", '{"city":"Oslo"}'),
        (7, "tool.weather.result", '"It is sunny in Oslo."'),
        (8, "forecaster.output", '"Sunny. Good day."'),
        (8, "answer", '"Sunny. Good day."'),
    ]
    assert ran.executions["complete"].to_list() == [True]
    assert ran.executions["traces"].to_list() == [3]  # each agent's making is a trace of its own
